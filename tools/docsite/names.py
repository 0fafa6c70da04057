"""Names that the documentation uses, held against what is there: files, Python names, parameters, commands."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from docsite.commands import commands
from docsite.figures import ROOT
from projector.cli import evidence
from projector.cli.parser import arguments
from projector.errors import InputError
from projector.kernels import backends

__all__ = ["command_lines", "inline", "wrong_commands", "wrong_names"]

_FENCE = re.compile(r"^( *)```[ ]*(\S*).*?\n(.*?)^\1```", flags=re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_PATH = re.compile(r"^(?:projector|harness|measured|suites|reports|examples|tools|docs|tests|\.ci)/[\w./*{},-]*$")
_DOTTED = re.compile(r"^(?:projector|harness)(?:\.\w+)+$")
_PARAMETER = re.compile(r"^(?:gemm|attention|grouped|stream|clock|link|rate|units|dispatch|hop_us|base_us)\.[\w.]*\w$")
_WORD = re.compile(r"^[a-z]\w*_\w*$")
_COMMAND = re.compile(r"^(?:python -m (?:harness|projector)\b|\./run\b|python tools/)")
_GROUPS = (backends.GROUP, evidence.GROUP)  # entry points of other packages
_OTHERS = (
    *("pip", "python -m pip", "python -m http.server", "sh examples/", "git", "cd", "cat", "mkdir", "docker"),
    "all_reduce_perf",
)


def inline(page: str) -> tuple[str, ...]:
    """Code inside the sentences, tables and equations of ``page``, without its fenced blocks."""
    text = _FENCE.sub("", page)
    return (*_INLINE.findall(text), *re.findall(r"<i>(\w*_\w*)</i>", text))


def blocks(page: str, language: str) -> tuple[str, ...]:
    """Fenced blocks of one language, without their indentation."""
    found = _FENCE.findall(page)
    return tuple("\n".join(line.removeprefix(pad) for line in body.splitlines()) for pad, kind, body in found
                 if kind == language)  # fmt: skip


def command_lines(page: str) -> tuple[str, ...]:
    """The lines of all ``sh`` blocks: comments and prompts left out, continued lines joined."""
    lines: list[str] = []
    for block in blocks(page, "sh"):
        lines += block.replace("\\\n", " ").splitlines()
    return tuple(line.strip() for line in lines if line.strip() and not line.strip().startswith("#"))


def wrong_names(page: str) -> list[str]:
    """Files, Python names and parameters in ``page`` that do not exist, each in words."""
    return [f"`{name}`: {wrong}" for name in dict.fromkeys(inline(page)) if (wrong := _wrong_name(name))]


def _wrong_name(name: str) -> str:
    if _PATH.match(name):
        return "" if any(_exists(path) for path in _braces(name)) else "no such file"
    if _DOTTED.match(name):
        return "" if name in _GROUPS or _resolves(name) else "no such module or attribute"
    if _PARAMETER.match(name):
        return "" if name in _parameters() else "no such parameter"
    if _WORD.match(name):
        return "" if name in _words() else "a word that no code and no data of this project holds"
    return ""


def _braces(path: str) -> Iterator[str]:
    """``a/{b,c}.py`` as the paths it stands for."""
    found = re.search(r"\{([^}]*)\}", path)
    if found is None:
        yield path
        return
    for word in found[1].split(","):
        yield from _braces(path[: found.start()] + word + path[found.end() :])


def _exists(path: str) -> bool:
    return any(ROOT.glob(path)) if "*" in path else (ROOT / path).exists()


def _resolves(name: str) -> bool:
    """Whether a dotted name is a module, or stands in one: read, never imported, since some need torch."""
    words = name.split(".")
    for cut in range(len(words), 0, -1):
        place = ROOT.joinpath(*words[:cut])
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if file.is_file():
            return _holds(ast.parse(file.read_text("utf-8")).body, words[cut:])
    return False


def _holds(body: list[ast.stmt], words: list[str]) -> bool:
    if not words:
        return True
    for statement in body:
        if words[0] in _names(statement):
            return not words[1:] or (isinstance(statement, ast.ClassDef) and _holds(statement.body, words[1:]))
    return False


def _names(statement: ast.stmt) -> list[str]:
    """What a statement binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in statement.names]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


@cache
def _parameters() -> str:
    """Every text in which a parameter is read, stated or explained."""
    places = ("projector/kernels/*.py", "projector/collectives/*", "projector/hardware/efficiency/*")
    return "\n".join(path.read_text("utf-8") for place in places for path in sorted(ROOT.glob(place)) if path.is_file())


@cache
def _words() -> frozenset[str]:
    """Every name with an underscore in the code and the data that travels with it."""
    found: set[str] = set()
    for folder in ("projector", "harness", "examples", "suites"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".yaml"):
                found |= set(re.findall(r"[A-Za-z]\w*_\w*", path.read_text("utf-8")))
    return frozenset(found)


def wrong_commands(page: str) -> list[str]:
    """Commands of ``page`` that the command lines would refuse, each in words.

    Lines of ``sh`` blocks are parsed as they stand; commands inside sentences may leave out what they must have.
    """
    found = [f"{line}: {wrong}" for line in command_lines(page) if (wrong := _wrong_line(line, whole=True))]
    said = [name for name in inline(page) if _COMMAND.match(name)]
    return found + [f"`{name}`: {wrong}" for name in said if (wrong := _wrong_line(name, whole=False))]


def _wrong_line(line: str, whole: bool) -> str:
    words = shlex.split(line.split("|")[0].split(">")[0], comments=True)
    while words and re.match(r"^[A-Z_]+=", words[0]):
        words = words[1:]
    words = ["python", "-m"][: 2 * (words[:1] in (["projector"], ["harness"]))] + words
    if words[:2] == ["python", "-m"] and len(words) > 2 and words[2] in ("harness", "projector"):
        return _wrong_arguments(words, whole)
    if words and words[0] == "./run":
        jobs = re.findall(r"^([a-z]+)\)$", (ROOT / "run").read_text("utf-8"), flags=re.MULTILINE)
        return "" if len(words) == 1 or words[1] in jobs else f"./run has no job {words[1]}, only {', '.join(jobs)}"
    if words[:1] == ["python"] and len(words) > 1 and words[1].endswith(".py"):
        return "" if (ROOT / words[1]).is_file() else "no such file"
    return "" if not whole or " ".join(words).startswith(_OTHERS) else "a command that nothing here knows"


def _wrong_arguments(words: list[str], whole: bool) -> str:
    known = commands()
    name = " ".join(words[:4])
    if name not in known:
        if len(words) > 3 and not words[3].startswith("-"):
            return f"no such command; there are {', '.join(key.split()[3] for key in known if len(key.split()) == 4)}"
        name = " ".join(words[:3])
    parser, rest = known[name], words[len(name.split()) :]
    flags = {flag for action in arguments(parser) for flag in action.option_strings}
    unknown = [word for word in rest if word.startswith("--") and word.split("=")[0] not in flags]
    if unknown:
        return f"no such option: {', '.join(unknown)}"
    if not whole:
        return ""
    lost = [word for word in rest if _PATH.match(word) and not any(map(_exists, _braces(word)))]
    if lost:
        return f"no such file: {', '.join(lost)}"
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            _, left = parser.parse_known_args(rest)
    except InputError as error:
        return "; ".join(map(str, error.problems))
    except SystemExit as stop:
        return "" if not stop.code else said.getvalue().strip().splitlines()[-1]
    return f"not understood: {' '.join(left)}" if left else ""


def path_of(page: Path) -> str:
    """A page's path as messages name it."""
    return str(page.relative_to(ROOT))
