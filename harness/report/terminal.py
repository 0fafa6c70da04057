"""Shows a report on a terminal, its headline tables and the gate, and returns it whole as plain values for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TextIO

from harness.report.table import NONE, Report, Table
from projector.io import terminal
from projector.io.table import Line

SCHEMA_VERSION = 1


def show(report: Report, stream: TextIO | None = None, most: int | None = None) -> None:
    """Writes the headline tables and the gate of ``report``; detail tables and the rows of a table after the first
    ``most`` stay in the files."""
    terminal.show(_blocks(report), stream, most)


def _blocks(report: Report) -> Iterator[Line | Table]:
    yield Line(report.title, "bold")
    yield from map(Line, report.lines)
    yield from (table for table in report.tables if not table.detail)
    if report.gate:
        yield Line("")
        yield Line("Gate (held out)", "title")
        yield from gate(report)


def gate(report: Report) -> Iterator[Line]:
    """Yields a line a check, with its verdict first."""
    yield from (Line(text, "bad" if text.startswith("FAIL") else "good") for text in report.gate)


def document(report: Report, command: str) -> dict[str, object]:
    """Returns the report as plain values. ``tables``: rows by column title, texts as shown (None without a figure)."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "title": report.title,
        "lines": list(report.lines),
        "tables": [_values(table) for table in report.tables],
        "gate": list(report.gate),
    }


def _values(table: Table) -> dict[str, object]:
    titles: list[str] = []
    seen = Counter[str]()
    for column in table.columns:  # a repeated title gets a number, because a key holds one value
        seen[column.title] += 1
        titles.append(column.title if seen[column.title] == 1 else f"{column.title} ({seen[column.title]})")
    rows = [
        {title: None if cell == NONE else cell for title, cell in zip(titles, row, strict=True)} for row in table.rows
    ]
    return {"title": table.title, "columns": titles, "rows": rows, "note": table.note}
