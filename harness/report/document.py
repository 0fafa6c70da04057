"""A report as plain values, for JSON: every table with all of its rows, as they are printed."""

from __future__ import annotations

from harness.report.table import NONE, Report, Table

SCHEMA_VERSION = 1


def of(report: Report, command: str) -> dict[str, object]:
    """``tables``: rows by column title, texts as in the terminal (None where there is no figure)."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "title": report.title,
        "lines": list(report.lines),
        "tables": [_table(table) for table in report.tables],
        "gate": list(report.gate),
    }


def _table(table: Table) -> dict[str, object]:
    titles = [column.title for column in table.columns]
    rows = [
        {title: None if cell == NONE else cell for title, cell in zip(titles, row, strict=True)} for row in table.rows
    ]
    return {"title": table.title, "columns": titles, "rows": rows, "note": table.note}
