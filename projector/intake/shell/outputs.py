"""Works out what harmless commands (text tools on known text) print, without running them."""

from __future__ import annotations

import ast
import operator
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from projector.intake.shell.patterns import classes, searchable
from projector.intake.shell.unknown import is_known, listed

SILENT = listed("silent")
#: Tools that read the file which is their last word.
FILTERS = frozenset(("sed", "head", "tail", "cut", "awk", "wc", "tr", "sort", "uniq"))
_NUMBER = re.compile(r"-?\d+")


def printed(argv: Sequence[str], stdin: str | None, *, cwd: str) -> str | None:
    """Returns the output of ``argv``; None for other commands and for output that depends on the machine.

    Marks in arguments pass through where text is only joined.
    """
    name, rest = posixpath.basename(argv[0]), list(argv[1:])
    if name == "echo":
        return _echo(rest)
    if name == "printf":
        return _printf(rest)
    if name == "pwd":
        return cwd + "\n"
    tool = _TOOLS.get(name)
    known = all(is_known(word) for word in rest) and (stdin is None or is_known(stdin))
    if tool is None or not (known or name == "sed"):
        return None
    try:
        return tool(rest, stdin)
    except (ValueError, IndexError, ZeroDivisionError, re.error, SyntaxError, OverflowError, RecursionError):
        return None


def substituted(text: str, environment: Mapping[str, str], rest: Sequence[str]) -> str:
    """Replaces ``$NAME`` and ``${NAME}`` in ``text`` as ``envsubst`` does: all, or those that ``rest`` names."""
    only = set(re.findall(r"\$\{?(\w+)", " ".join(rest)))

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return match[0] if only and name not in only else environment.get(name, "")

    return re.sub(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", value, text)


def _echo(rest: list[str]) -> str:
    escapes, end = False, "\n"
    while rest and re.fullmatch(r"-[neE]+", rest[0]):
        escapes = escapes or "e" in rest[0]
        end = "" if "n" in rest[0] else end
        rest = rest[1:]
    text = " ".join(rest)
    return (_unescaped(text) if escapes else text) + end


def _unescaped(text: str) -> str:
    return re.sub(r"\\([nt\\])", lambda match: {"n": "\n", "t": "\t", "\\": "\\"}[match[1]], text)


def _printf(rest: list[str]) -> str | None:
    if rest and rest[0] == "-v":
        return None
    rest = [word for word in rest if word != "--"]
    if not rest:
        return ""
    form, values = _unescaped(rest[0]), rest[1:]
    slots = re.findall(r"%%|%[-+ 0#]*\d*(?:\.\d+)?[a-zA-Z]", form)
    count = sum(slot != "%%" for slot in slots)
    text = ""
    while True:
        batch, values = values[:count], values[count:]
        feed = iter([*batch, *[""] * (count - len(batch))])
        text += re.sub(r"%%|%[-+ 0#]*\d*(?:\.\d+)?[a-zA-Z]", lambda match: _fill(match[0], feed), form)  # noqa: B023
        if not values or not count or len(text) > 100_000:
            return text


def _fill(slot: str, feed: object) -> str:
    if slot == "%%":
        return "%"
    value = next(feed)  # type: ignore[call-overload]
    if slot[-1] in "di" and _NUMBER.fullmatch(value):
        return str(slot[:-1] + "d") % int(value)
    if slot[-1] in "feg" and re.fullmatch(r"-?[\d.]+", value):
        return str(slot % float(value))
    return str(value)


def _operands(rest: list[str]) -> list[str]:
    return [word for word in rest if not re.fullmatch(r"--?[a-zA-Z][\w-]*(=.*)?|--", word)]


def _basename(rest: list[str], _: str | None) -> str:
    words = _operands(rest)
    if "-s" in rest:
        return posixpath.basename(words[1].rstrip("/")).removesuffix(words[0]) + "\n"
    base = posixpath.basename(words[0].rstrip("/")) or "/"
    return (base.removesuffix(words[1]) if len(words) > 1 and base != words[1] else base) + "\n"


def _dirname(rest: list[str], _: str | None) -> str:
    return "".join((posixpath.dirname(word.rstrip("/")) or ".") + "\n" for word in _operands(rest))


def _normalised_paths(rest: list[str], _: str | None) -> str:
    return "".join(posixpath.normpath(word) + "\n" for word in _operands(rest))


def _seq(rest: list[str], _: str | None) -> str:
    sep = "\n"
    if rest and rest[0] == "-s":
        sep, rest = rest[1], rest[2:]
    numbers = [int(word) for word in rest if word != "-w"]
    first, step, last = {1: (1, 1, numbers[-1]), 2: (numbers[0], 1, numbers[-1])}.get(len(numbers), (0, 0, 0))
    if len(numbers) == 3:
        first, step, last = numbers
    values = range(first, last + (1 if step > 0 else -1), step)
    return sep.join(str(value) for value in values[:5000]) + "\n"


def _expr(rest: list[str], _: str | None) -> str:
    if rest and rest[0] == "length":
        return f"{len(rest[1])}\n"
    words = [{"\\*": "*", "\\(": "(", "\\)": ")"}.get(word, word) for word in rest]
    if not all(re.fullmatch(r"-?\d+|[-+*/%()]", word) for word in words):
        raise ValueError
    return f"{int(_calculated(' '.join(words), whole=True))}\n"


def _bc(_: list[str], stdin: str | None) -> str:
    text = (stdin or "").strip()
    scale = 20 if "-l" in _ else 0
    match = re.match(r"scale\s*=\s*(\d+)\s*;", text)
    if match:
        scale, text = int(match[1]), text[match.end() :].strip()
    value = _calculated(text, whole=scale == 0)
    if scale == 0 or (value.denominator == 1 and "/" not in text):
        return f"{int(value)}\n"
    shifted = int(value * 10**scale)
    digits = f"{abs(shifted):0{scale + 1}d}"
    whole = digits[:-scale].lstrip("0")
    return f"{'-' if shifted < 0 else ''}{whole}.{digits[-scale:]}\n"


_OPERATORS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}


def _calculated(text: str, *, whole: bool) -> Fraction:
    if len(text) > 200 or "**" in text:
        raise ValueError
    return _evaluated(ast.parse(text.strip(), mode="eval").body, whole)


def _evaluated(node: ast.AST, whole: bool) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand, whole)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value = _OPERATORS[type(node.op)](_evaluated(node.left, whole), _evaluated(node.right, whole))
        return Fraction(int(value)) if whole else value
    raise ValueError


def _wc(rest: list[str], stdin: str | None) -> str:
    if stdin is None or _operands(rest):
        raise ValueError
    if "-l" in rest:
        return f"{stdin.count(chr(10))}\n"
    if "-w" in rest:
        return f"{len(stdin.split())}\n"
    return f"{len(stdin)}\n"


def _grep(rest: list[str], stdin: str | None) -> str:
    """Prints one line per match of ``grep -o TEXT`` for plain text that the input contains."""
    option, text = rest
    if option != "-o" or not re.fullmatch(r"[\w,:; /-]+", text) or text not in (stdin or ""):
        raise ValueError
    return f"{text}\n" * (stdin or "").count(text)


def _tr(rest: list[str], stdin: str | None) -> str:
    if stdin is None:
        raise ValueError
    if rest[0] in ("-d", "-s"):
        if rest[0] == "-s":
            return re.sub(f"([{re.escape(_unescaped(rest[1]))}])\\1+", r"\1", stdin)
        return "".join(char for char in stdin if char not in _character_set(rest[1]))
    source, target = _character_set(rest[0]), _character_set(rest[1])
    table = {ord(char): target[min(index, len(target) - 1)] for index, char in enumerate(source)}
    return stdin.translate(table)


def _character_set(text: str) -> str:
    text = _unescaped(text).replace("[:upper:]", "A-Z").replace("[:lower:]", "a-z").replace("[:space:]", " \n\t")
    return re.sub(r"(\w)-(\w)", lambda m: "".join(chr(c) for c in range(ord(m[1]), ord(m[2]) + 1)), text)


def _cut(rest: list[str], stdin: str | None) -> str:
    words = " ".join(rest)
    delimiter = re.search(r"-d\s*(\S| (?= ))", words)
    field = re.search(r"-f\s*(\d+)(-?)(\d*)", words)
    if stdin is None or field is None:
        raise ValueError
    sep = delimiter[1] if delimiter else "\t"
    first = int(field[1]) - 1
    last = (int(field[3]) if field[3] else None) if field[2] else first + 1
    lines = [sep.join(line.split(sep)[first:last]) if sep in line else line for line in stdin.splitlines()]
    return "".join(line + "\n" for line in lines)


def _head(rest: list[str], stdin: str | None, *, last: bool = False) -> str:
    if stdin is None:
        raise ValueError
    match = re.search(r"-n?\s*(\d+)", " ".join(rest))
    count = int(match[1]) if match else 10
    lines = stdin.splitlines(keepends=True)
    return "".join(lines[-count:] if last else lines[:count])


def _awk(rest: list[str], stdin: str | None) -> str:
    text = " ".join(rest)
    if stdin is None:
        raise ValueError
    by = re.search(r"-F\s*(\S)", text)
    field = re.search(r"\{\s*print\s+(NF|\$\d+|\$NF)\s*;?\s*\}\s*$", text)
    if field is None or re.search(r"[/~]", text):
        raise ValueError
    columns = []
    for line in stdin.splitlines():
        parts = line.split(by[1]) if by else line.split()
        what = field[1]
        index = len(parts) if what == "$NF" else int(what[1:]) if what != "NF" else 0
        columns.append(str(len(parts)) if what == "NF" else parts[index - 1] if index and index <= len(parts) else "")
    return "".join(line + "\n" for line in columns)


def _sed(rest: list[str], stdin: str | None) -> str:
    """Applies ``s`` commands of plain text in turn; replacements and the text around a match may hold marks."""
    text = stdin
    scripts = [part for word in rest if word not in ("-e", "-E", "-r") for part in word.split(";") if part.strip()]
    for script in scripts:
        match = re.fullmatch(r"\s*s(.)(.*?)\1(.*?)\1(g?)\s*", script, re.DOTALL)
        if match is None or text is None or re.search(r"[\\()|+?\ue000]", match[2]) or re.search(r"[\\&]", match[3]):
            raise ValueError
        replacement, count = match[3], 0 if match[4] else 1
        lines = text.splitlines(keepends=True)
        pattern = searchable(classes(match[2]), max(map(len, lines), default=0))
        text = "".join(pattern.sub(lambda _: replacement, line, count=count) for line in lines)  # noqa: B023
    if text is None:
        raise ValueError
    return text


_TOOLS: dict[str, Callable[[list[str], str | None], str]] = {
    "basename": _basename,
    "dirname": _dirname,
    **dict.fromkeys(("realpath", "readlink"), _normalised_paths),
    "seq": _seq,
    "expr": _expr,
    "bc": _bc,
    "wc": _wc,
    "grep": _grep,
    "tr": _tr,
    "cut": _cut,
    "head": _head,
    "tail": lambda rest, stdin: _head(rest, stdin, last=True),
    "awk": _awk,
    "sed": _sed,
    "sort": lambda rest, stdin: _sorted(rest, stdin),
    "uniq": lambda rest, stdin: _sorted(["-s", *rest], stdin),
    "which": lambda rest, _: f"{rest[-1]}\n",
    "xargs": lambda rest, stdin: " ".join((stdin or "").split()) + "\n" if not rest else _refuse(),
    **dict.fromkeys(("true", "false", ":"), lambda *_: ""),
}


def _sorted(rest: list[str], stdin: str | None) -> str:
    """Prints lines as ``sort``, ``sort -u`` and ``uniq`` do; ``-s`` (used here for ``uniq``) keeps their order."""
    if stdin is None or any(word not in ("-u", "-V", "-n", "-s") for word in rest):
        raise ValueError
    lines = stdin.splitlines()
    if "-s" in rest:
        lines = [line for number, line in enumerate(lines) if not number or line != lines[number - 1]]
    else:
        lines = sorted(set(lines) if "-u" in rest else lines)
    return "".join(line + "\n" for line in lines)


def _refuse() -> str:
    raise ValueError
