"""Expands words (quotes, variables, arithmetic and commands in them), then splits them into fields.

Bash reference manual, "Shell Expansions"; names of files are never looked up (a pattern stays as it stands).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from projector.dataclass import dataclass
from projector.intake.shell.control import TooLong
from projector.intake.shell.unknown import MARK

if TYPE_CHECKING:
    from projector.intake.shell.parameters import Parameters

_NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!-]")
_BRACE = re.compile(r"\{(-?\d+|[a-zA-Z](?=\.\.[a-zA-Z]))\.\.(-?\d+|(?<=[a-zA-Z]\.\.)[a-zA-Z])(?:\.\.(-?\d+))?\}")
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_MOST_FIELDS, _MOST_TEXT = 20_000, 4_000_000
_MOST_BRACES = 12  # of one word


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an expanded word. ``quoted``: pattern characters stand for themselves; ``split``: blanks end a field;
    ``ends``: a field ends here (between the elements of ``"$@"``)."""

    text: str
    quoted: bool = False
    split: bool = False
    ends: bool = False


def lex(text: str, parameters: Parameters, *, inside: bool = False) -> list[Piece]:
    """Returns the pieces of a word; ``inside``: the text stands between double quotes (or in a here-document).

    Raises :class:`TooLong` for a text beyond 4,000,000 characters.
    """
    if len(text) > _MOST_TEXT:
        raise TooLong(f"a word of {len(text):,} characters")
    found: list[Piece] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            following = text[at + 1 : at + 2]
            if following == "\n":
                at += 2
                continue
            if inside and following not in ('"', "\\", "$", "`"):
                found.append(Piece(char, quoted=True))
                at += 1
                continue
            found.append(Piece(following or "\\", quoted=True))
            at += 2
        elif char == "'" and not inside:
            stop = text.find("'", at + 1)
            stop = len(text) if stop < 0 else stop
            found.append(Piece(text[at + 1 : stop], quoted=True))
            at = stop + 1
        elif char == '"' and inside:  # of "${x:-"y"}": quotes inside a quoted expansion
            at += 1
        elif char == '"':
            stop = quoted_end(text, at)
            inner = lex(text[at + 1 : stop], parameters, inside=True)
            found += inner or [Piece("", quoted=True)]
            at = stop + 1
        elif char == "$" and text[at + 1 : at + 2] in ("'", '"') and not inside:
            if text[at + 1] == '"':
                at += 1
                continue
            stop = _quote_end(text, at + 2, "'")
            plain = re.sub(r"\\(.)", lambda match: _ANSI.get(match[1], match[1]), text[at + 2 : stop], flags=re.DOTALL)
            found.append(Piece(plain, quoted=True))
            at = stop + 1
        elif char == "$":
            pieces, at = _expand_dollar(text, at, parameters, inside)
            found += pieces
        elif char == "`":
            stop = _quote_end(text, at + 1, "`")
            command = re.sub(r"\\([`\\$])", r"\1", text[at + 1 : stop])
            found.append(_expanded_piece(parameters.command(command), inside))
            at = stop + 1
        else:
            stop = at + 1
            while stop < len(text) and text[stop] not in "\\'\"$`":
                stop += 1
            found.append(Piece(text[at:stop], quoted=inside))
            at = stop
    return found


def _expanded_piece(text: str, inside: bool) -> Piece:
    return Piece(text, quoted=inside, split=not inside)


def _expand_dollar(text: str, at: int, parameters: Parameters, inside: bool) -> tuple[list[Piece], int]:
    following = text[at + 1 : at + 2]
    if following == "(":
        stop = closing(text, at + 1)
        inner = text[at + 2 : stop]
        if inner.startswith("(") and inner.endswith(")"):
            value = parameters.arithmetic(inner[1:-1])
            if value is not None:
                return [_expanded_piece(value, inside)], stop + 1
        return [_expanded_piece(parameters.command(inner), inside)], stop + 1
    if following == "{":
        stop = closing(text, at + 1)
        return parameters.expand(text[at + 2 : stop], inside), stop + 1
    if following == "[":
        stop = closing(text, at + 1)
        return [_expanded_piece(parameters.arithmetic(text[at + 2 : stop]) or "", inside)], stop + 1
    name = _NAME.match(text, at + 1)
    if name is None:
        return [Piece("$", quoted=inside)], at + 1
    return parameters.expand(name[0], inside), name.end()


def closing(text: str, opening: int) -> int:
    """Returns where the bracket at ``opening`` closes, past quotes and nested brackets; the text's end where it does not."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    wanted, opener = pairs[text[opening]], text[opening]
    depth, at = 0, opening
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char == "'" and not _unpaired(text, at):
            stop = text.find("'", at + 1)
            at = len(text) if stop < 0 else stop
        elif char == '"':
            at = quoted_end(text, at)
        elif char == "$" and text[at + 1 : at + 2] in ("{", "(") and at + 1 != opening:
            at = closing(text, at + 1)
        elif char == "`":
            at = _quote_end(text, at + 1, "`")
        elif char == opener:
            depth += 1
        elif char == wanted:
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return len(text)


def _unpaired(text: str, at: int) -> bool:
    """Says whether the single quote at ``at`` never closes, as in ``${x:-it's}``, and so is a plain character."""
    return text.find("'", at + 1) < 0


def quoted_end(text: str, opening: int) -> int:
    """Returns where the double quote at ``opening`` closes; the end of the text where it does not."""
    at = opening + 1
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char == '"':
            return at
        elif char == "$" and text[at + 1 : at + 2] in ("{", "("):
            at = closing(text, at + 1)
        elif char == "`":
            at = _quote_end(text, at + 1, "`")
        at += 1
    return len(text)


def _quote_end(text: str, at: int, quote: str) -> int:
    """Returns where ``quote`` next stands unescaped, from ``at`` on; the end of the text where it does not."""
    while at < len(text) and text[at] != quote:
        at += 2 if text[at] == "\\" else 1
    return min(at, len(text))


def joined(pieces: list[Piece]) -> str:
    """Joins pieces into one text, as an assignment does: nothing splits, a blank separates elements."""
    text = "".join(" " if piece.ends else piece.text for piece in pieces)
    if len(text) > _MOST_TEXT:
        raise TooLong(f"a value of {len(text):,} characters")
    return text


def fields_of(pieces: list[Piece], ifs: str = " \t\n") -> list[str]:
    """Splits ``pieces`` at the characters ``ifs`` into the words of a command line."""
    fields: list[str] = []
    current: list[str] = []
    solid = False  # whether the current field exists even when it is empty

    def end() -> None:
        nonlocal solid
        if current or solid:
            fields.append("".join(current))
        current.clear()
        solid = False

    for piece in pieces:
        if len(fields) > _MOST_FIELDS:
            break
        if piece.ends:
            end()
        elif not piece.split:
            if piece.text:
                current.append(piece.text)
            solid = solid or piece.quoted
        elif piece.text:
            parts = re.split(f"[{re.escape(ifs)}]+", piece.text) if ifs else [piece.text]
            for number, part in enumerate(parts):
                if number:
                    end()
                if part:
                    current.append(part)
    end()
    return fields


def braces(words: list[str]) -> list[str]:
    """Writes out ``{1..4}`` and ``{a,b}`` in unquoted words, each of several with each of the others."""
    for _ in range(_MOST_BRACES):
        expanded: list[str] = []
        for word in words:
            choice = _BRACE.search(word) or re.search(r"(?<!\$)\{([^{}]*,[^{}]*)\}", word)
            if not choice or MARK.search(choice[1]) or len(expanded) > _MOST_FIELDS:
                expanded.append(word)
                continue
            parts = _numbers(choice) if choice.re is _BRACE else choice[1].split(",")
            expanded += [word[: choice.start()] + part + word[choice.end() :] for part in parts]
        if expanded == words:
            break
        words = expanded
    return words


def _numbers(choice: re.Match[str]) -> list[str]:
    letters = choice[1].isalpha()
    first, last = (ord(text) if letters else int(text) for text in choice.group(1, 2))
    step = abs(int(choice[3] or 1)) or 1
    width = max(len(text) for text in choice.group(1, 2)) if re.search(r"(?<!\d)-?0\d", choice[0]) else 0
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return [chr(number) if letters else f"{number:0{width}d}" for number in numbers[:1000]]
