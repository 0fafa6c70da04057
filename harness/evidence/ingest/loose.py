"""Loosely typed records of training runs → :class:`MeasuredRun`, with a report of every field of every row.

Nothing is guessed in silence: a value is mapped from a stated one, assumed (and listed in the run), or refused (the run
keeps its row with ``problem``). What no field can hold and yet distinguishes rows of one group is kept in ``switches``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from harness.contracts.runs import MeasuredRun
from harness.evidence.ingest.configured import Memory
from harness.evidence.ingest.headers import COLUMNS_OF_A_RUN, known_key
from harness.evidence.ingest.importmap import ImportMap
from harness.evidence.ingest.record import Record
from harness.evidence.ingest.report import Converted, RowReport
from harness.evidence.ingest.row import convert_row
from projector.errors import InputError, Problem


def convert(records: Iterable[object], where: str, header_map: ImportMap | None = None) -> Converted:
    """Convert records (mappings, as YAML and JSON give them).

    ``where``: their file, for the report. Raises :class:`InputError` for a record that is no mapping, or repeats an id.
    """
    known = header_map or ImportMap()
    made = list(records)
    problems = [
        Problem(where, f"[{index}]", data, "a record: columns and their values")
        for index, data in enumerate(made)
        if not isinstance(data, Mapping)
    ]
    if problems:
        raise InputError(problems[:_MOST_SHOWN])
    found = (Record(data, f"{where}[{index}]", known.columns) for index, data in enumerate(made))  # type: ignore[arg-type]
    return gathered(converted(found, known), where)


def refuse_foreign(records: Iterable[object], where: str, header_map: ImportMap | None = None) -> None:
    """Raises :class:`InputError` for records none of which has a key that a run is read from."""
    columns = (header_map or ImportMap()).columns
    keys: dict[str, None] = {}
    for data in records:
        if isinstance(data, Mapping) and data:
            known = Record(data, where, columns).values
            if any(map(known_key, known)):
                return
            keys.update(dict.fromkeys(map(str, data)))
    if keys:
        raise InputError([Problem(where, "", ", ".join(keys)[:80], COLUMNS_OF_A_RUN)])


def gathered(pairs: Iterable[tuple[MeasuredRun, Record]], where: str) -> Converted:
    """All rows of a table, with what distinguishes those of one group. Raises :class:`InputError` for an id given twice."""
    kept = list(pairs)
    first: dict[str, str] = {}
    problems = []
    groups = Groups()
    for run, record in kept:
        if run.id in first:
            found = f"an id that {first[run.id]} does not have"
            problems.append(Problem(where, record.where.removeprefix(where) + ".id", run.id, found))
        first.setdefault(run.id, record.where)
        groups.see(run, record)
    if problems:
        raise InputError(problems[:_MOST_SHOWN])
    runs = tuple(groups.with_switches(run, record) for run, record in kept)
    return Converted(runs=runs, rows=tuple(report_of(run, record) for run, (_, record) in zip(runs, kept, strict=True)))


def converted(
    records: Iterable[Record], known: ImportMap, memory: Memory | None = None
) -> Iterator[tuple[MeasuredRun, Record]]:
    """Each record with its run, one after the other. ``memory``: see :func:`convert_row`."""
    for index, record in enumerate(records):
        yield convert_row(record, index, known, memory), record


def report_of(run: MeasuredRun, record: Record) -> RowReport:
    return RowReport(
        where=record.where,
        id=run.id,
        mapped=tuple(record.mapped),
        assumed=tuple(record.assumed),
        refused=tuple(record.refused),
        doubts=tuple(record.doubts),
        unread=run.unread,
    )


class Groups:
    """Short values that differ within the rows of one group, at keys of which something is unread in one of them: they tell
    rows apart and no field holds them. They are known when every row has been seen."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, set[str]]] = {}
        self._unread: dict[str, set[str]] = {}
        self._sizes: Counter[str] = Counter()

    def see(self, run: MeasuredRun, record: Record) -> None:
        if run.group:
            self._sizes[run.group] += 1
            self._unread.setdefault(run.group, set()).update(text.partition(": ")[0] for text in run.unread)
            values = self._values.setdefault(run.group, {})
            for key, value in _short(record):
                values.setdefault(key, set()).add(str(value))

    def with_switches(self, run: MeasuredRun, record: Record) -> MeasuredRun:
        unread = self._unread.get(run.group)
        if not unread:
            return run
        varied, most = self._values[run.group], max(3, self._sizes[run.group])
        kept = {key: value for key, value in _short(record) if key in unread and 1 < len(varied[key]) < most}
        return replace(run, switches={**run.switches, **kept}) if kept else run


_MOST_SHOWN = 20  # mistakes of one kind
_LONGEST = 60  # characters of a value that tells rows apart


def _short(record: Record) -> Iterator[tuple[str, object]]:
    """The values that no section but ``other`` has, as far as they are short."""
    for key, value in record.values.items():
        one = key.startswith("other.") and key.count(".") == 1 and isinstance(value, (str, int, float, bool))
        if one and len(str(value)) <= _LONGEST:
            yield key.removeprefix("other."), value
