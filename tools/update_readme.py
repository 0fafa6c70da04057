"""Put the generated parts of README.md in place: figures from reports/figures.md, terminal output from reports/moe.txt.

    python tools/update_readme.py [--check]

With ``--check`` nothing is written; exit code 1 says that README.md is not what the reports give.
"""

from __future__ import annotations

import sys
from pathlib import Path

from harness.report import blocks
from projector.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = ("In short", "Throughput error", "By GPU", "Speed")
TABLES, ROWS = 4, 8


def figures(text: str) -> str:
    """The sections of figures.md that the README shows, one heading level down."""
    parts = blocks.sections(text)
    return "\n\n".join(f"### {name}\n\n{parts[name]}" for name in SECTIONS if name in parts)


def excerpt(text: str) -> str:
    """The headline and the first tables of what a run prints, each cut after a few rows; the verdicts of the gate."""
    head, *blocks = text.strip().split("\n\n")
    made = [head, *(_cut(block) for block in blocks[:TABLES])]
    made += [block for block in blocks[TABLES:] if block.startswith("Gate")]
    return "```text\n" + "\n\n".join(made) + "\n```"


def _cut(block: str) -> str:
    """Title, head and first rows; the sentences below (no cells apart by two spaces) stay out."""
    title, head, rule, *rest = block.splitlines()
    rows = [line for line in rest if "  " in line]
    return "\n".join((title, head, rule, *rows[:ROWS], *(["…"] if len(rows) > ROWS else [])))


def replaced(readme: str, name: str, content: str) -> str:
    """``readme`` with ``content`` between the two markers of ``name``."""
    try:
        return blocks.replaced(readme, name, content, "README.md")
    except InputError as error:
        raise SystemExit(str(error)) from None


def main(arguments: list[str]) -> int:
    path = ROOT / "README.md"
    old = path.read_text(encoding="utf-8")
    new = replaced(old, "figures", figures((ROOT / "reports" / "figures.md").read_text(encoding="utf-8")))
    new = replaced(new, "output", excerpt((ROOT / "reports" / "moe.txt").read_text(encoding="utf-8")))
    if "--check" in arguments:
        if new != old:
            print("README.md: its generated parts are not those of reports/; run ./run reports", file=sys.stderr)
        return int(new != old)
    if new != old:
        path.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
