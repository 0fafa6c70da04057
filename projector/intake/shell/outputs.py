"""Works out what harmless commands (text tools on known text) print, without running them."""

from __future__ import annotations

import ast
import operator
import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from getopt import GetoptError, getopt

from projector.intake.shell import text_tools
from projector.intake.shell.unknown import is_known, listed

SILENT = listed("silent")
_SLOT = re.compile(r"%%|%[-+ 0#]*\d*(?:\.\d*)?[a-zA-Z]")
_NUMBER = re.compile(r"-?(?:[1-9]\d*|0+[1-9]?)")
_UNANSWERED = (ValueError, IndexError, ZeroDivisionError, re.error, SyntaxError, OverflowError, RecursionError)


def printed(
    argv: Sequence[str], stdin: str | None, *, cwd: str, read: Callable[[str], str | None] = lambda _: None
) -> str | None:
    """Returns the output of ``argv``; None for other commands and for output that depends on the machine. ``read``: gives
    the text of a file. Marks in arguments pass through where text is only joined."""
    name, rest = posixpath.basename(argv[0]), list(argv[1:])
    if name == "echo":
        return _echo(rest)
    if name == "pwd":
        return cwd + "\n"
    tool = _TOOLS.get(name)
    try:
        if name == "printf":
            return _printf(rest)
        if name in text_tools.NAMES:
            return text_tools.printed(argv, stdin, read)
        known = all(is_known(word) for word in rest) and (stdin is None or is_known(stdin))
        return tool(rest, stdin) if tool and known else None
    except (*_UNANSWERED, GetoptError):
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
    slots = re.findall(_SLOT, form)
    count = sum(slot != "%%" for slot in slots)
    text = ""
    while True:
        batch, values = values[:count], values[count:]
        feed = iter([*batch, *[""] * (count - len(batch))])
        text += re.sub(_SLOT, lambda match: _fill(match[0], feed), form)  # noqa: B023
        if not values or not count or len(text) > 100_000:
            return text


def _fill(slot: str, feed: object) -> str:
    if slot == "%%":
        return "%"
    value = str(next(feed))  # type: ignore[call-overload]
    if not is_known(value):
        return value
    if slot[-1] in "di" and _NUMBER.fullmatch(value):
        return str(slot[:-1] + "d") % int(value)
    if slot[-1] in "feg" and re.fullmatch(r"-?[\d.]+", value):
        return str(slot % float(value))
    if slot[-1] == "s":
        return str(slot % value)
    if slot == "%q":
        return shlex.quote(value)
    raise ValueError


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
    given, rest = getopt(rest, "+s:w") if not re.match(r"-\d", rest[0]) else ([], rest)
    options = dict(given)
    sep, numbers = options.get("-s", "\n"), [int(word) for word in rest]
    first, step, last = {1: (1, 1, numbers[-1]), 2: (numbers[0], 1, numbers[-1])}.get(len(numbers), (0, 0, 0))
    if len(numbers) == 3:
        first, step, last = numbers
    values = range(first, last + (1 if step > 0 else -1), step)
    width = max(map(len, rest)) if "-w" in options else 0
    return sep.join(f"{value:0{width}d}" for value in values[:5000]) + "\n"


def _expr(rest: list[str], _: str | None) -> str:
    if rest and rest[0] == "length":
        return f"{len(rest[1])}\n"
    words = [{"\\*": "*", "\\(": "(", "\\)": ")"}.get(word, word) for word in rest]
    if not all(re.fullmatch(r"-?\d+|[-+*/%()]", word) for word in words):
        raise ValueError
    return f"{int(_calculated(' '.join(words), 0))}\n"


def _bc(rest: list[str], stdin: str | None) -> str:
    text = (stdin or "").strip()
    scale = 20 if "-l" in rest else 0
    match = re.match(r"scale\s*=\s*(\d+)\s*;", text)
    if match:
        scale, text = int(match[1]), text[match.end() :].strip()
    if re.search(r"[A-Za-z]", text):
        raise ValueError
    value = _calculated(text, scale)
    if value.denominator == 1 and (scale == 0 or "/" not in text):
        return f"{int(value)}\n"
    if scale == 0:  # as many digits as the factors have
        scale = max(len(digits) for digits in re.findall(r"\.(\d*)", text))
    shifted = int(value * 10**scale)
    if "/" not in text and shifted != value * 10**scale:  # a product keeps more digits than that
        raise ValueError
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


def _calculated(text: str, scale: int) -> Fraction:
    if len(text) > 200 or "**" in text:
        raise ValueError
    return _evaluated(ast.parse(text.strip(), mode="eval").body, scale)


def _evaluated(node: ast.AST, scale: int) -> Fraction:
    """Returns the value of an expression whose quotients keep ``scale`` digits."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand, scale)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _evaluated(node.left, scale), _evaluated(node.right, scale)
        if isinstance(node.op, (ast.Div, ast.Mod)):
            quotient = Fraction(int(left / right * 10**scale), 10**scale)
            return quotient if isinstance(node.op, ast.Div) else left - quotient * right
        return _OPERATORS[type(node.op)](left, right)
    raise ValueError


_TOOLS: dict[str, Callable[[list[str], str | None], str]] = {
    "basename": _basename,
    "dirname": _dirname,
    **dict.fromkeys(("realpath", "readlink"), _normalised_paths),
    "seq": _seq,
    "expr": _expr,
    "bc": _bc,
    "which": lambda rest, _: f"{rest[-1]}\n",
    **dict.fromkeys(("true", "false", ":"), lambda *_: ""),
}
