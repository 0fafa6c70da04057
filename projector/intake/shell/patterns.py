"""Turns a shell's patterns (``*``, ``?``, ``[a-z]``, ``@(a|b)``) into regular expressions, and applies ``${x%…}``."""

from __future__ import annotations

import re
import warnings
from functools import lru_cache

from projector.intake.shell.control import TooLong

_MOST_STEPS = 1e8  # of a search with a regular expression: seconds
_FEW = 100  # characters, at the worst of which a search does not end
_EACH = 4.0  # ways that one character of a text may double a search by, at the worst
_PIECE = re.compile(r"\\.|\[\]?[^\]]*\]|\((?:\?(?:P<\w+>|[:=!]|<[=!]))?|\{(\d*)(,?)(\d*)\}|.", re.DOTALL)

_GROUPS = {"@": "(?:{})", "?": "(?:{})?", "*": "(?:{})*", "+": "(?:{})+", "!": "(?!(?:{})$).*"}
_CLASSES = {
    "digit": "0-9",
    "space": " \t\n\r\f\v",
    "alpha": "A-Za-z",
    "alnum": "A-Za-z0-9",
    "upper": "A-Z",
    "lower": "a-z",
}


def classes(pattern: str) -> str:
    """Replaces the POSIX character classes of ``pattern`` (``[:digit:]``) by the characters that they mean."""
    return re.sub(r"\[:(\w+):\]", lambda named: _CLASSES.get(named[1], named[0]), pattern)


@lru_cache(maxsize=4096)
def to_regex(pattern: str, *, lazy: bool = False) -> str:
    """Returns a regular expression for a shell pattern; ``\\x`` in the pattern is x itself."""
    regex, at, pattern = "", 0, classes(pattern)
    laziness = "?" if lazy else ""
    while at < len(pattern):
        char = pattern[at]
        if char in _GROUPS and pattern[at + 1 : at + 2] == "(" and ")" in pattern[at:]:
            stop = _closing(pattern, at + 1)
            inner = "|".join(to_regex(part, lazy=lazy) for part in _alternatives(pattern[at + 2 : stop]))
            regex += _GROUPS[char].format(inner)
            at = stop + 1
            continue
        if char == "\\" and at + 1 < len(pattern):
            at += 1
            regex += re.escape(pattern[at])
        elif char == "*":
            regex += ".*" + laziness
        elif char == "?":
            regex += "."
        elif char == "[" and "]" in pattern[at + 2 :]:
            stop = pattern.index("]", at + 2)
            body = pattern[at + 1 : stop].replace("\\", "\\\\").replace("[", "\\[")
            regex += f"[{'^' + body[1:] if body[:1] in '!^' else body}]"
            at = stop
        else:
            regex += re.escape(char)
        at += 1
    return regex


def _closing(pattern: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(pattern)):
        depth += {"(": 1, ")": -1}.get(pattern[at], 0)
        if depth == 0:
            return at
    return len(pattern) - 1


def _alternatives(text: str) -> list[str]:
    parts, depth = [""], 0
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def most_steps(regex: str, size: int) -> float:
    """Returns how many ways a backtracking search may try on ``size`` characters, at most; a repetition of what can match
    in several ways (``(a+)+``) counts as infinite below the bound ``_EACH ** min(size, _FEW)``."""
    groups: list[tuple[float, bool]] = []  # of every open group: the ways before it, whether it has alternatives
    ways, last, several = 1.0, 1.0, False
    for piece in _PIECE.finditer(regex):
        text = piece[0]
        if text.startswith("("):
            groups.append((ways, several))
            ways, several = 1.0, False
        elif text == ")" and groups:
            last = 2 * ways if several else ways
            (before, several), ways = groups.pop(), 1.0
            ways = before * last
        elif text == "|":
            several = True
        elif text in "*+" or (piece[2] and not piece[3]) or (piece[3] and int(piece[3]) > 1):
            ways *= size + 1 if last == 1 else float("inf")
        elif text == "?":  # behind an atom, which may be left out, or behind a repetition, which it makes lazy
            ways *= 2
        else:
            last = 1.0
    return min(ways * (size + 1), _EACH ** min(size, _FEW))


def searchable(regex: str, size: int) -> re.Pattern[str]:
    """Compiles ``regex`` for a text of ``size`` characters. Raises :class:`TooLong` where a search could outlast anybody's
    patience, :class:`re.error` for what is no regular expression."""
    if most_steps(regex, size) > _MOST_STEPS:
        raise TooLong(f"the pattern {regex[:60]} on a text of {size:,} characters")
    with warnings.catch_warnings():  # Python's own about sets such as [[x], which a shell has as they stand
        warnings.simplefilter("ignore")
        return re.compile(regex, re.DOTALL)


def _compiled(pattern: str, text: str, *, lazy: bool = False) -> re.Pattern[str]:
    try:
        return searchable(to_regex(pattern, lazy=lazy), len(text))
    except re.error:
        return re.compile(re.escape(pattern))


def matches(text: str, pattern: str) -> bool:
    """Says whether the whole of ``text`` matches the shell pattern ``pattern``."""
    return _compiled(pattern, text).fullmatch(text) is not None


def stripped(text: str, pattern: str, sign: str) -> str:
    """Returns ``${x#pattern}``, ``${x##pattern}``, ``${x%pattern}`` or ``${x%%pattern}`` (``sign``) for ``text`` of x."""
    compiled, start, longest = _compiled(pattern, text), sign[0] == "#", len(sign) == 2
    for cut in range(len(text) + 1) if start != longest else range(len(text), -1, -1):
        if compiled.fullmatch(text, 0, cut) if start else compiled.fullmatch(text, cut):
            return text[cut:] if start else text[:cut]
    return text


def replace_in(text: str, pattern: str, by: str, *, how: str) -> str:
    """Returns ``${x/pattern/by}``; ``how``: ``/`` the first match, ``//`` all, ``/#`` at the start, ``/%`` at the end."""
    if not pattern:
        return {"/#": by + text, "/%": text + by}.get(how, text)
    regex = to_regex(pattern)
    anchored = {"/#": f"\\A(?:{regex})", "/%": f"(?:{regex})\\Z"}.get(how, regex)
    try:
        return searchable(anchored, len(text)).sub(lambda _: by, text, count=0 if how == "//" else 1)
    except re.error:
        return text
