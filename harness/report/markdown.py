"""Writes a report as Markdown with all tables, the long ones too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from harness.report.table import Report, Table


def render(report: Report, plots: Mapping[str, str] | None = None) -> str:
    """Returns the Markdown text; ``plots`` maps a caption to the file name beside it."""
    return "\n".join(_lines(report, plots or {})) + "\n"


def _lines(report: Report, plots: Mapping[str, str]) -> Iterator[str]:
    yield from (f"# {report.title}", "", *(f"- {escape(line)}" for line in report.lines))
    if report.gate:
        yield from ("", "## Gate (held out)", "")
        for word, _, rest in (line.partition(" ") for line in report.gate):
            yield f"- **{word}** {escape(rest)}"
    for caption, name in plots.items():
        yield from ("", f"![{caption}]({name})")
    for table in report.tables:
        yield from ("", f"## {table.title}", "", *table_lines(table))
    if report.provenance:
        origin = (f"- {name}: `{value}`" for name, value in report.provenance)
        yield from ("", "## Provenance (inputs with their SHA-256)", "", *origin)


def table_lines(table: Table) -> Iterator[str]:
    """Yields the lines of a table and, below it, of its note."""
    yield _row([c.title for c in table.columns])
    yield _row(["---:" if c.numeric else "---" for c in table.columns], marked=True)
    yield from (_row(row) for row in table.rows)
    if table.note:
        yield from ("", escape(table.note))


def _row(cells: Sequence[str], *, marked: bool = False) -> str:
    return "| " + " | ".join(c if marked else escape(c) for c in cells) + " |"


_MARKUP = re.compile(r"[\\|*<`\[\]~]|:(?=//)|(?<=www)\.|(?<![^\W_])_|_(?![^\W_])")  # "_" inside a word is itself


def escape(text: str) -> str:
    """Escapes characters that are markup in a cell or a sentence, addresses that GitHub links included."""
    return _MARKUP.sub(r"\\\g<0>", text.replace("\n", " "))
