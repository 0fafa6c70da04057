"""Shows lines and tables on a terminal: styled where it is one, aligned plain text where it is piped.

A table that is too wide goes without whole columns, says which, and lets words go on in the next line; no figure is ever
cut. Piped text is as wide as its tables, unless the environment states a width (``COLUMNS=100``).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TextIO

from projector.io.table import Line, Table

_GAP = "  "
# Characters to which names of rows, and words of another column that stays, may be broken.
_NAME, _WORDS = 34, 24
_STYLES = {"title": "bold cyan", "bold": "bold", "dim": "dim", "good": "green", "bad": "bold red"}

#: Between a figure and its unit, and before a factor, where no line ends.
_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|GiB|days)(?!\w))|(?<=×) (?=\d)")

Styled = tuple[str, str]


def show(blocks: Iterable[Line | Table], stream: TextIO | None = None, most: int | None = None) -> None:
    """Writes ``blocks`` in order, a blank line before each table, at most ``most`` rows of each."""
    out = stream or sys.stdout
    lines = plain(blocks, width_of(out), most)
    if not out.isatty():
        out.writelines(f"{text}\n" for text, _ in lines)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out, highlight=False)
    for text, style in lines:
        console.print(Text(text, style=_STYLES.get(style, "")), soft_wrap=True)


def width_of(stream: TextIO) -> int | None:
    """Returns the columns of the terminal behind ``stream``, else what the environment states; None: as wide as need
    be."""
    if stream.isatty():
        return shutil.get_terminal_size().columns
    stated = os.environ.get("COLUMNS", "")
    return int(stated) if stated.isdecimal() and int(stated) else None


def plain(blocks: Iterable[Line | Table], width: int | None = None, most: int | None = None) -> Iterator[Styled]:
    """Yields every line with its style, at most ``width`` wide (a path or a command in a :class:`Line` stays whole)."""
    for block in blocks:
        if isinstance(block, Line):
            yield from ((text, block.style) for text in wrapped(block.text, width))
        else:
            yield "", ""
            yield from _table(block, width, most)


def wrapped(text: str, width: int | None) -> list[str]:
    """Returns ``text`` broken at spaces, the rest indented like its beginning; words that are too long stay whole."""
    if width is None or len(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()))
    bound = _UNIT.sub("\u00a0", text)
    lines = textwrap.wrap(bound, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def _table(table: Table, width: int | None, most: int | None) -> Iterator[Styled]:
    rows = table.rows[:most]
    places, widths = _fitting_columns(table, rows, width)
    numeric = [table.columns[i].numeric for i in places]
    left_out = ", ".join(c.title or "marks" for i, c in enumerate(table.columns) if i not in places)
    if table.title:
        yield from ((text, "title") for text in wrapped(table.title, width))
    for text in _lines([table.columns[i].title for i in places], numeric, widths, low=True):
        yield text, "bold"
    rule = _GAP.join("-" * each for each in widths)
    yield rule, "dim"
    for n, row in enumerate(rows):
        last = table.total and n == len(table.rows) - 1
        if last and n:
            yield rule, "dim"
        for text in _lines([row[i] for i in places], numeric, widths):
            yield text, "bold" if last else ""
    if len(rows) < len(table.rows):
        yield f"… and {len(table.rows) - len(rows)} more: see the report files", ""
    notes = [table.note] if table.note else []
    notes += [f"Left out at this width: {left_out}; a wider terminal or --json shows them."] if left_out else []
    for note in notes:
        yield from ((text, "dim") for text in wrapped(note, width))


def _fitting_columns(table: Table, rows: Sequence[Sequence[str]], width: int | None) -> tuple[list[int], list[int]]:
    """Returns the places of the columns that stay, and the width of each."""
    columns = table.columns
    cells = [max((len(row[i]) for row in rows), default=0) for i in range(len(columns))]
    natural = [max(1, len(c.title), wide) for c, wide in zip(columns, cells, strict=True)]
    places = list(range(len(columns)))
    if width is None or _total(natural) <= width:
        return places, natural
    defaults = [_NAME, *[_WORDS] * len(columns)]
    least = [
        max(1, *map(len, c.title.split() or [""]), wide if c.numeric or c.minor else min(wide, c.least or some))
        for c, wide, some in zip(columns, cells, defaults, strict=False)
    ]
    while len(places) > 1 and _total([least[i] for i in places]) > width:
        places.remove(max(places[1:], key=lambda i: (columns[i].minor, i)))
    widths = {i: min(least[i], width) for i in places}
    spare = max(0, width - _total(list(widths.values())))
    for rest, i in zip(range(len(places), 0, -1), sorted(places, key=lambda i: natural[i] - widths[i]), strict=True):
        added = min(natural[i] - widths[i], spare // rest)
        widths[i] += added
        spare -= added
    texts = {i: (columns[i].title, *(row[i] for row in rows)) for i in places}
    return places, [max(1, *(len(part) for text in texts[i] for part in _parts(text, widths[i]))) for i in places]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _lines(cells: Sequence[str], numeric: Sequence[bool], widths: Sequence[int], *, low: bool = False) -> Iterator[str]:
    """Yields one row, in as many lines as its longest cell takes; ``low``: short cells stand at the bottom."""
    parts = [_parts(cell, wide) for cell, wide in zip(cells, widths, strict=True)]
    if low:
        tall = max(map(len, parts))
        parts = [[""] * (tall - len(part)) + part for part in parts]
    for line in zip_longest(*parts, fillvalue=""):
        placed = zip(line, numeric, widths, strict=True)
        yield _GAP.join(c.rjust(w) if right else c.ljust(w) for c, right, w in placed).rstrip()


def _parts(text: str, width: int) -> list[str]:
    """Returns ``text`` in parts of at most ``width``: broken at spaces, and inside a longer word behind its marks."""
    if len(text) <= width:
        return [text]
    parts: list[str] = []
    for line in wrapped(text, width):
        while len(line) > width:
            marks = [mark.end() for mark in re.finditer(r"[-_/.,](?=\w)", line[: width + 1])]
            at = marks[-1] if marks and marks[-1] <= width else width
            parts.append(line[:at])
            line = line[at:]
        parts.append(line)
    return parts
