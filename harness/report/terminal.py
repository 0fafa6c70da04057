"""A report on a terminal: styled and fitted to its width where it is one, aligned plain text where it is piped.

Piped text is as wide as its tables, unless the environment states a width (``COLUMNS=100``).
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TextIO

from harness.report.table import Report, Table, without

__all__ = ["fitted", "plain_table", "show"]

MOST_ROWS = 40
_SHORT = 10  # rows of a table whose sentences are shown whole
GAP = 2
NARROWEST = 12
NARROWEST_NAME = 22

Write = Callable[[str, str], None]


def show(report: Report, stream: TextIO | None = None, most: int | None = MOST_ROWS) -> None:
    """Write the headline tables and the gate of ``report``; detail tables and what follows the first ``most`` rows of a
    table stay in the files."""
    out = stream or sys.stdout
    if out.isatty():
        _show(report, *_styled(out), most)
    else:
        stated = os.environ.get("COLUMNS", "")
        _show(report, lambda text, _: print(text, file=out), int(stated) if stated.isdecimal() else None, most)


def _styled(out: TextIO) -> tuple[Write, int]:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out, highlight=False)

    def write(text: str, style: str) -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    return write, console.width


def _show(report: Report, write: Write, width: int | None, most: int | None) -> None:
    write(report.title, "bold")
    for line in report.lines:
        write(_wrapped(line, width), "")
    for table in report.tables:
        if table.detail:
            continue
        shown = fitted(table, width, most) if width else table
        write("", "")
        write(table.title, "bold cyan")
        head, rule, *rest = plain_table(replace(shown, note=""), most)
        write(head, "bold")
        write(rule, "dim")
        for line in rest:
            write(line, "")
        if table.note:
            write(_wrapped(table.note, width), "dim")
    if report.gate:
        write("", "")
        write("Gate (held out)", "bold cyan")
        for line in report.gate:
            write(_wrapped(line, width), "green" if line.startswith("PASS") else "bold red")


def _wrapped(text: str, width: int | None) -> str:
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False) if width else text


def plain_table(table: Table, most: int | None = None) -> Iterator[str]:
    """Aligned columns, two spaces between them, a rule under the head."""
    rows = table.rows[:most]
    widths = _widths(table, most)
    yield _line([c.title for c in table.columns], table, widths)
    yield (" " * GAP).join("-" * w for w in widths)
    yield from (_line(row, table, widths) for row in rows)
    if len(rows) < len(table.rows):
        yield f"… and {len(table.rows) - len(rows)} more: see the report files"
    if table.note:
        yield table.note


def fitted(table: Table, width: int, most: int | None = MOST_ROWS) -> Table:
    """``table`` with as few minor columns left out, and then as little text cut, as makes it ``width`` wide.

    Sentences in the last column of a short table go on below instead.
    """
    while _total(table, most) > width and (minor := [i for i, c in enumerate(table.columns) if c.minor]):
        table = without(table, minor[-1])
    widest_first = sorted(range(1, len(table.columns)), key=lambda i: -_widths(table, most)[i])
    for i in (*widest_first, 0):
        excess = _total(table, most) - width
        if excess > 0 and not table.columns[i].numeric:
            room = _widths(table, most)[i] - excess
            if i == len(table.columns) - 1 and len(table.rows) <= _SHORT and room >= 2 * NARROWEST and _worded(table):
                table = _continued(table, room)
            else:
                table = _cut(table, i, max(NARROWEST if i else NARROWEST_NAME, room))
    return table


def _worded(table: Table) -> bool:
    return any(" " in row[-1] for row in table.rows)


def _continued(table: Table, width: int) -> Table:
    """The last column at most ``width`` wide, the rest of a cell in rows of its own."""
    rows: list[tuple[str, ...]] = []
    for *cells, last in table.rows:
        first, *rest = textwrap.wrap(last, width, break_on_hyphens=False) or [""]
        rows += [(*cells, first), *(("",) * len(cells) + (part,) for part in rest)]
    return replace(table, rows=tuple(rows))


def _widths(table: Table, most: int | None) -> list[int]:
    return [max(len(c.title), *(len(row[i]) for row in table.rows[:most])) for i, c in enumerate(table.columns)]


def _total(table: Table, most: int | None) -> int:
    return sum(_widths(table, most)) + GAP * (len(table.columns) - 1)


def _cut(table: Table, index: int, width: int) -> Table:
    def short(text: str) -> str:
        return text if len(text) <= width else text[: width - 1] + "…"

    rows = tuple((*row[:index], short(row[index]), *row[index + 1 :]) for row in table.rows)
    return replace(table, rows=rows)


def _line(cells: Sequence[str], table: Table, widths: Sequence[int]) -> str:
    columns = zip(cells, table.columns, widths, strict=True)
    return (" " * GAP).join(c.rjust(w) if column.numeric else c.ljust(w) for c, column, w in columns).rstrip()
