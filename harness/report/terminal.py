"""A report on a terminal: rich tables where it is one, aligned plain text where it is piped."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from harness.report.table import Report, Table

__all__ = ["plain_table", "show"]

MOST_ROWS = 40


def show(report: Report, stream: TextIO | None = None) -> None:
    """Write the headline tables and the gate of ``report``; detail tables stay in the files."""
    out = stream or sys.stdout
    if out.isatty():
        _show_rich(report, out)
    else:
        out.write("\n".join(_plain(report)) + "\n")


def _plain(report: Report) -> Iterator[str]:
    yield report.title
    yield from report.lines
    for table in report.tables:
        if not table.detail:
            yield ""
            yield table.title
            yield from plain_table(table, MOST_ROWS)
    if report.gate:
        yield ""
        yield "Gate (held out)"
        yield from report.gate


def plain_table(table: Table, most: int | None = None) -> Iterator[str]:
    """Aligned columns, two spaces between them, a rule under the head."""
    rows = table.rows[:most]
    widths = [max(len(c.title), *(len(row[i]) for row in rows)) for i, c in enumerate(table.columns)]
    yield _line([c.title for c in table.columns], table, widths)
    yield "  ".join("-" * w for w in widths)
    yield from (_line(row, table, widths) for row in rows)
    if len(rows) < len(table.rows):
        yield f"… and {len(table.rows) - len(rows)} more: see the report files"
    if table.note:
        yield table.note


def _line(cells: Sequence[str], table: Table, widths: Sequence[int]) -> str:
    columns = zip(cells, table.columns, widths, strict=True)
    return "  ".join(c.rjust(w) if column.numeric else c.ljust(w) for c, column, w in columns).rstrip()


def _show_rich(report: Report, out: TextIO) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as RichTable

    console = Console(file=out, highlight=False)
    console.print(f"[bold]{escape(report.title)}[/bold]")
    for line in report.lines:
        console.print(escape(line))
    for table in report.tables:
        if table.detail:
            continue
        drawn = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for column in table.columns:
            keep = column is table.columns[0] or column.numeric
            drawn.add_column(
                column.title,
                justify="right" if column.numeric else "left",
                no_wrap=column.numeric,
                overflow="fold" if keep else "ellipsis",
            )
        for row in table.rows[:MOST_ROWS]:
            drawn.add_row(*(escape(cell) for cell in row))
        console.print(drawn)
        if len(table.rows) > MOST_ROWS:
            console.print(f"[dim]… and {len(table.rows) - MOST_ROWS} more: see the report files[/dim]")
        if table.note:
            console.print(f"[dim]{escape(table.note)}[/dim]")
    for line in report.gate:
        colour = "green" if line.startswith("PASS") else "red"
        console.print(f"[{colour}]{escape(line)}[/{colour}]")
