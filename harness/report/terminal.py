"""A report on a terminal: its headline tables and the gate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from harness.report.table import Report, Table
from projector.io import terminal
from projector.io.table import Line


def show(report: Report, stream: TextIO | None = None, most: int | None = None) -> None:
    """Write the headline tables and the gate of ``report``; detail tables and what follows the first ``most`` rows of a
    table stay in the files."""
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
    """A line a check, with its verdict first."""
    yield from (Line(text, "bad" if text.startswith("FAIL") else "good") for text in report.gate)
