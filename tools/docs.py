"""The documentation: its generated parts, its names and commands, and the site.

    python tools/docs.py fill           put the figures of reports/ and the tables of the code in place
    python tools/docs.py check          nothing is written: stale parts, unknown names and commands
    python tools/docs.py build [DIR]    fill, check, build the site strictly (default: out/docs), check its links
    python tools/docs.py site [DIR]     the same without fill, as CI does
    python tools/docs.py show NAME      print one generated part; without a name: the names

Exit code 0: all is well, 1: something is stale or wrong (a line each), 2: the input is wrong. ``build`` and ``site`` need
mkdocs-material (``pip install -e ".[docs]"``); the others do not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from docsite import links, names
from docsite.blocks import markers, replaced
from docsite.figures import FIGURES, ROOT
from docsite.reference import REFERENCE

from projector.errors import InputError, Problem, nearest

DOCS = ROOT / "docs"
SITE = ROOT / "out" / "docs"
MKDOCS = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
BLOCKS = {**FIGURES, **REFERENCE}


def pages() -> tuple[Path, ...]:
    """Every page of the documentation."""
    return tuple(sorted(DOCS.rglob("*.md")))


def block(name: str) -> str:
    """One generated part. Raises :class:`InputError` for an unknown name."""
    if name not in BLOCKS:
        raise InputError([Problem("docs", "", name, nearest(name, tuple(BLOCKS)))])
    return BLOCKS[name]().replace(r"\<", "&lt;")  # what the reports escape for other readers of Markdown


def filled(page: Path) -> str:
    """The text of ``page`` with every generated part as it should be."""
    text, where = page.read_text(encoding="utf-8"), names.path_of(page)
    for name in markers(text):
        text = replaced(text, name, f"\n{block(name)}\n", where)
    return text


def fill() -> list[str]:
    """Writes the pages that change."""
    for page in pages():
        new = filled(page)
        if new != page.read_text(encoding="utf-8"):
            page.write_text(new, encoding="utf-8")
            print(f"{names.path_of(page)}: filled")
    return []


def check() -> list[str]:
    """What is stale, unknown or refused, in words."""
    found = [f"README.md: {wrong}" for wrong in names.wrong_commands((ROOT / "README.md").read_text(encoding="utf-8"))]
    for page in pages():
        text, where = page.read_text(encoding="utf-8"), names.path_of(page)
        if filled(page) != text:
            found.append(f"{where}: its generated parts are not current; run python tools/docs.py fill")
        found += [f"{where}: {wrong}" for wrong in (*names.wrong_names(text), *names.wrong_commands(text))]
    return found


def run(command: list[str]) -> int:
    """The exit code of a command that runs in the repository's root; its words are shown where it fails."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's word about another site builder
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
    return done.returncode


def site(folder: Path) -> list[str]:
    """Checks, builds strictly into ``folder``, checks the links of what came out."""
    found = check()
    if run([*MKDOCS, "--site-dir", str(folder)]):
        return [*found, "mkdocs: the build failed (its words stand above)"]
    return [*found, *links.wrong_links(folder)]


def main(arguments: list[str]) -> int:
    """Runs one command; returns the exit code."""
    command, *rest = arguments or ["build"]
    folder = Path(rest[0]).resolve() if rest else SITE
    try:
        if command == "show":
            print("\n\n".join(block(name) for name in rest) if rest else "\n".join(BLOCKS))
            return 0
        if command not in ("fill", "check", "build", "site"):
            print(__doc__, file=sys.stderr)
            return 2
        found = fill() if command in ("fill", "build") else []
        found += check() if command == "check" else site(folder) if command in ("build", "site") else []
    except InputError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return 2
    print(*found, sep="\n", file=sys.stderr, end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
