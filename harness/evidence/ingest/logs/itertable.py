"""Tables of step times in Markdown, as commit messages and issues hold them: a row an iteration, a column a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from harness.evidence.ingest.logs.events import Event, Fact, Step
from harness.evidence.ingest.logs.numbers import finite
from harness.evidence.ingest.logs.protocol import Lines

_HEADER = re.compile(r"^\s{0,9}\|\s{0,9}(?:iter|iteration|step)s?\s{0,9}\|", re.IGNORECASE)
_ROW = re.compile(r"^\s{0,9}\|\s{0,9}([0-9]{1,15})\b[^|]{0,30}\|")
_CELL = re.compile(r"(?<!\\)\|")
_VALUE = re.compile(r"([0-9][0-9,]*(?:\.[0-9]+)?)(?:\s*\\\|\s*([0-9][0-9,]*(?:\.[0-9]+)?))?")
_MOST_COLUMNS = 64


def events(lines: Lines) -> Iterator[Event]:
    """Cells ``time`` or ``time \\| TFLOP/s`` in milliseconds; a table under a title of rates alone is no table of times."""
    title = ""
    columns: Sequence[str] = ()
    steps: list[list[Step]] = []
    for number, line in lines:
        bare = line.strip()
        if not bare.startswith("|"):
            yield from _runs(columns, steps)
            columns, steps = (), []
            title = f"{title} {bare}"[-400:] if bare and not bare.startswith("**") else bare or title
        elif _HEADER.match(line):
            columns = _cells(line)[:_MOST_COLUMNS] if "TFLOP" not in title or "ms" in title else ()
            steps = [[] for _ in columns]
        elif columns and (row := _ROW.match(line)):
            for found, cell in zip(steps, _cells(line), strict=False):
                if (value := _VALUE.search(cell)) and (milliseconds := finite(value[1])):
                    rate = finite(value[2]) if value[2] else None
                    found.append(
                        Step(iteration=int(row[1]), seconds=milliseconds / 1000, line=number, tflops=rate, mean=True)
                    )
    yield from _runs(columns, steps)


def _runs(columns: Sequence[str], steps: Sequence[Sequence[Step]]) -> Iterator[Event]:
    for name, found in zip(columns, steps, strict=True):
        if found:
            yield Fact("run", name, found[0].line)
            yield from found


def _cells(line: str) -> list[str]:
    """Cells after the first column, without their emphasis."""
    return [cell.strip().strip("*").strip() for cell in _CELL.split(line.strip().strip("|"))][1:]
