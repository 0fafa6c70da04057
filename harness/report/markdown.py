"""A report as Markdown: all tables, the long ones too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.report.table import Report, Table

__all__ = ["render"]


def render(report: Report, plots: Mapping[str, str] | None = None) -> str:
    """The Markdown text; ``plots`` maps a caption to the file name beside it."""
    return "\n".join(_lines(report, plots or {})) + "\n"


def _lines(report: Report, plots: Mapping[str, str]) -> Iterator[str]:
    yield f"# {report.title}"
    yield ""
    for line in report.lines:
        yield f"- {_escape(line)}"
    if report.gate:
        yield ""
        yield "## Gate (held out)"
        yield ""
        yield from (f"- {_gate(line)}" for line in report.gate)
    for caption, name in plots.items():
        yield ""
        yield f"![{caption}]({name})"
    for table in report.tables:
        yield ""
        yield f"## {table.title}"
        yield ""
        yield from _table(table)
    if report.provenance:
        yield ""
        yield "## Provenance (inputs with their SHA-256)"
        yield ""
        yield from (f"- {name}: `{value}`" for name, value in report.provenance)


def _gate(line: str) -> str:
    word, _, rest = line.partition(" ")
    return f"**{word}** {_escape(rest)}"


def _table(table: Table) -> Iterator[str]:
    yield _row([c.title for c in table.columns])
    yield _row(["---:" if c.numeric else "---" for c in table.columns], escape=False)
    yield from (_row(row) for row in table.rows)
    if table.note:
        yield ""
        yield _escape(table.note)


def _row(cells: Sequence[str], *, escape: bool = True) -> str:
    return "| " + " | ".join(_escape(c) if escape else c for c in cells) + " |"


def _escape(text: str) -> str:
    """Characters that Markdown would read as markup in a cell or a sentence."""
    made = text.replace("\\", "\\\\").replace("\n", " ")
    for mark in "|*<`":
        made = made.replace(mark, "\\" + mark)
    return made
