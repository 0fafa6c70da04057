"""A report on a terminal: styled and fitted to its width where it is one, aligned plain text where it is piped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TextIO

from harness.report.table import Report, Table

__all__ = ["fitted", "plain_table", "show"]

MOST_ROWS = 40
GAP = 2
NARROWEST = 12
NARROWEST_NAME = 28

Write = Callable[[str, str], None]


def show(report: Report, stream: TextIO | None = None) -> None:
    """Write the headline tables and the gate of ``report``; detail tables and long tails stay in the files."""
    out = stream or sys.stdout
    if out.isatty():
        _show(report, *_styled(out))
    else:
        _show(report, lambda text, _: print(text, file=out), None)


def _styled(out: TextIO) -> tuple[Write, int]:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out, highlight=False)

    def write(text: str, style: str) -> None:
        console.print(Text(text, style=style), soft_wrap=style != "dim")

    return write, console.width


def _show(report: Report, write: Write, width: int | None) -> None:
    write(report.title, "bold")
    for line in report.lines:
        write(line, "")
    for table in report.tables:
        if table.detail:
            continue
        shown = fitted(table, width) if width else table
        write("", "")
        write(table.title, "bold cyan")
        head, rule, *rest = plain_table(replace(shown, note=""), MOST_ROWS)
        write(head, "bold")
        write(rule, "dim")
        for line in rest:
            write(line, "")
        if table.note:
            write(table.note, "dim")
    if report.gate:
        write("", "")
        write("Gate (held out)", "bold cyan")
        for line in report.gate:
            write(line, "green" if line.startswith("PASS") else "bold red")


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


def fitted(table: Table, width: int) -> Table:
    """``table`` with as few minor columns left out, and then as little text cut, as makes it ``width`` wide."""
    while _total(table) > width and (minor := [i for i, c in enumerate(table.columns) if c.minor]):
        table = _without(table, minor[-1])
    widest_first = sorted(range(1, len(table.columns)), key=lambda i: -_widths(table, MOST_ROWS)[i])
    for i in (*widest_first, 0):
        excess = _total(table) - width
        if excess > 0 and not table.columns[i].numeric:
            narrowest = NARROWEST if i else NARROWEST_NAME
            table = _cut(table, i, max(narrowest, _widths(table, MOST_ROWS)[i] - excess))
    return table


def _widths(table: Table, most: int | None) -> list[int]:
    return [max(len(c.title), *(len(row[i]) for row in table.rows[:most])) for i, c in enumerate(table.columns)]


def _total(table: Table) -> int:
    return sum(_widths(table, MOST_ROWS)) + GAP * (len(table.columns) - 1)


def _without(table: Table, index: int) -> Table:
    columns = table.columns[:index] + table.columns[index + 1 :]
    return replace(table, columns=columns, rows=tuple(row[:index] + row[index + 1 :] for row in table.rows))


def _cut(table: Table, index: int, width: int) -> Table:
    def short(text: str) -> str:
        return text if len(text) <= width else text[: width - 1] + "…"

    rows = tuple((*row[:index], short(row[index]), *row[index + 1 :]) for row in table.rows)
    return replace(table, rows=rows)


def _line(cells: Sequence[str], table: Table, widths: Sequence[int]) -> str:
    columns = zip(cells, table.columns, widths, strict=True)
    return (" " * GAP).join(c.rjust(w) if column.numeric else c.ljust(w) for c, column, w in columns).rstrip()
