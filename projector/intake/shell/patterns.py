"""Patterns of a shell (``*``, ``?``, ``[a-z]``, ``@(a|b)``) as regular expressions, and what ``${x%…}`` does with them."""

from __future__ import annotations

import re

_GROUPS = {"@": "(?:{})", "?": "(?:{})?", "*": "(?:{})*", "+": "(?:{})+", "!": "(?!(?:{})$).*"}


def to_regex(pattern: str, *, lazy: bool = False) -> str:
    """A regular expression for a shell pattern; ``\\x`` in the pattern is x itself."""
    found, at = "", 0
    more = "?" if lazy else ""
    while at < len(pattern):
        char = pattern[at]
        if char in _GROUPS and pattern[at + 1 : at + 2] == "(" and ")" in pattern[at:]:
            stop = _closing(pattern, at + 1)
            inner = "|".join(to_regex(part, lazy=lazy) for part in _alternatives(pattern[at + 2 : stop]))
            found += _GROUPS[char].format(inner)
            at = stop + 1
            continue
        if char == "\\" and at + 1 < len(pattern):
            at += 1
            found += re.escape(pattern[at])
        elif char == "*":
            found += ".*" + more
        elif char == "?":
            found += "."
        elif char == "[" and "]" in pattern[at + 2 :]:
            stop = pattern.index("]", at + 2)
            body = pattern[at + 1 : stop].replace("\\", "\\\\").replace("[", "\\[").replace("\\[:", "[:")
            body = body.replace("[:digit:]", "0-9").replace("[:space:]", r"\s").replace("[:alpha:]", "A-Za-z")
            found += f"[{'^' + body[1:] if body[:1] in '!^' else body}]"
            at = stop
        else:
            found += re.escape(char)
        at += 1
    return found


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


def _compiled(pattern: str, *, lazy: bool = False) -> re.Pattern[str]:
    try:
        return re.compile(to_regex(pattern, lazy=lazy), re.DOTALL)
    except re.error:
        return re.compile(re.escape(pattern))


def matches(text: str, pattern: str) -> bool:
    """Whether the whole of ``text`` fits ``pattern``."""
    return _compiled(pattern).fullmatch(text) is not None


def strip_prefix(text: str, pattern: str, *, longest: bool) -> str:
    """``${x#pattern}`` and, longest, ``${x##pattern}``."""
    cuts = range(len(text), -1, -1) if longest else range(len(text) + 1)
    compiled = _compiled(pattern)
    return next((text[cut:] for cut in cuts if compiled.fullmatch(text, 0, cut)), text)


def strip_suffix(text: str, pattern: str, *, longest: bool) -> str:
    """``${x%pattern}`` and, longest, ``${x%%pattern}``."""
    cuts = range(len(text) + 1) if longest else range(len(text), -1, -1)
    compiled = _compiled(pattern)
    return next((text[:cut] for cut in cuts if compiled.fullmatch(text, cut)), text)


def replace_in(text: str, pattern: str, by: str, *, how: str) -> str:
    """``${x/pattern/by}``; ``how``: ``/`` the first, ``//`` all, ``/#`` at the start, ``/%`` at the end."""
    if not pattern:
        return text
    regex = to_regex(pattern)
    anchored = {"/#": f"\\A(?:{regex})", "/%": f"(?:{regex})\\Z"}.get(how, regex)
    try:
        return re.sub(anchored, lambda _: by, text, count=0 if how == "//" else 1, flags=re.DOTALL)
    except re.error:
        return text
