"""A table too long to hold: read, converted, reported and written row by row.

What a row cannot know by itself is gathered in passes of their own before anything is written: ids that repeat, and the
values that distinguish the rows of a group.
"""

from __future__ import annotations

import gzip
import os
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import IO

from harness.contracts.runs import MeasuredRun
from harness.evidence import run_text
from harness.evidence.ingest.csvtable import CsvTable, is_csv
from harness.evidence.ingest.importmap import ImportMap
from harness.evidence.ingest.loose import Groups, converted, report_of
from harness.evidence.ingest.report import RowReport
from projector.dataclass import dataclass
from projector.errors import InputError, Problem

_STREAMED = 4 * 2**20  # bytes above which a table alone is not held: a row of 70 takes 5 kB of memory
_LONG = 16 * 2**20  # bytes above which it is not held with others either
_CHUNK = 2**20
_MOST_REASONS = 1000  # different reasons that are counted apart
_MODE = 0o644
_FIGURE = re.compile(r"\d[\d.,]*")


@dataclass
class Totals:
    """Rows by status, how many each reason stops, and of how many each thing is ``said``: what is assumed, the keys that
    nothing reads, doubts without their figures (beyond the first thousand of a kind together)."""

    statuses: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    written: dict[str, int] = field(default_factory=dict)

    def add(self, row: RowReport) -> None:
        self.statuses[row.status] += 1
        _count(self.refusals, row.refused)
        _count(self.said, (f"assumed: {text}" for text in row.assumed))
        _count(self.said, (f"unread: {text.partition(': ')[0]}" for text in row.unread))
        _count(self.said, (f"doubtful: {_FIGURE.sub('…', text)}" for text in row.doubts))


def _count(counts: Counter[str], texts: Iterable[str]) -> None:
    for text in texts:
        counts[text if text in counts or len(counts) < _MOST_REASONS else "other reasons"] += 1


def is_long(path: Path, most: int | None = None) -> bool:
    """Returns whether a file is a CSV of ``most`` bytes, by default of more than is well held in memory; of gzip, what it
    unpacks to counts."""
    if not is_csv(path) or not path.is_file():
        return False
    most = _STREAMED if most is None else most
    return path.stat().st_size >= most or (path.suffix == ".gz" and _unpacks_to(path, most))


def _unpacks_to(path: Path, remaining: int) -> bool:
    try:
        with gzip.open(path) as data:
            while remaining > 0 and (chunk := data.read(_CHUNK)):
                remaining -= len(chunk)
    except (OSError, EOFError, zlib.error):
        return False  # said by whoever reads the table
    return remaining <= 0


def refuse_long(path: Path) -> None:
    """Raises :class:`InputError` for a table that is too long to be held with others: a million rows take gigabytes."""
    if is_long(path, _LONG):
        expected = f"at most {_LONG >> 20} MiB here, where all rows are held: split it"
        alone = "`harness ingest` of this table alone reads it row by row"
        raise InputError([Problem(str(path), "", f"a table of more than {_LONG >> 20} MiB", f"{expected}, or {alone}")])


def stream(path: Path, known: ImportMap, files: Callable[[str], Path] | None, header: str) -> Totals:
    """Converts a CSV. ``files``: where the run of an id is written, None for nowhere; ``header``: the first line of each
    file.

    Raises :class:`InputError` with the mistakes of the table; then nothing is written.
    """
    table = CsvTable(path, known.columns)
    table.refuse_repeated_ids()
    groups = _gather_groups(table, known)
    totals = Totals()
    with _whole_files(header) as (write, counts):
        for run, record in converted(table.records(), known):
            run = groups.with_switches(run, record)
            totals.add(report_of(run, record))
            if files is not None:
                write(files(run.id), run)
        totals.written = dict(counts)
    return totals


def _gather_groups(table: CsvTable, known: ImportMap) -> Groups:
    """Gathers what varies within each group; a table without groups needs no pass for it."""
    groups = Groups()
    if "group" in table.keys or known.assign:
        for run, record in converted(table.records(), known):
            groups.see(run, record)
    return groups


@contextmanager
def _whole_files(header: str) -> Iterator[tuple[Callable[[Path, MeasuredRun], None], Counter[str]]]:
    """Yields a function that adds a run to the file of a path, and the runs of each path. The files have other names until
    the block ends, and are gone where it fails."""
    opened: dict[Path, IO[str]] = {}
    counts: Counter[str] = Counter()

    def write(path: Path, run: MeasuredRun) -> None:
        if path not in opened:
            path.parent.mkdir(parents=True, exist_ok=True)
            opened[path] = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed and renamed with the others
                "w", dir=path.parent, prefix=f".{path.name[:100]}.", delete=False, encoding="utf-8"
            )
            opened[path].write(f"# {header}\n")
        opened[path].write(("\n" if counts[str(path)] else "") + run_text.to_yaml([run]))
        counts[str(path)] += 1

    try:
        yield write, counts
        for path, new in opened.items():
            new.close()
            os.chmod(new.name, _MODE)
            os.replace(new.name, path)
    except BaseException:
        for new in opened.values():
            new.close()
            Path(new.name).unlink(missing_ok=True)
        raise
