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
        unused=tuple(record.unused()),
    )


class Groups:
    """The short unmapped values that differ within the rows of one group: no field holds them, and yet they tell rows
    apart. They are known when every row has been seen."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, set[str]]] = {}
        self._sizes: Counter[str] = Counter()

    def see(self, run: MeasuredRun, record: Record) -> None:
        if run.group:
            self._sizes[run.group] += 1
            values = self._values.setdefault(run.group, {})
            for key, value in _leftovers(record).items():
                values.setdefault(key, set()).add(str(value))

    def with_switches(self, run: MeasuredRun, record: Record) -> MeasuredRun:
        varied = self._values.get(run.group)
        if not varied:
            return run
        kept = {
            key.removeprefix("other."): value
            for key, value in _leftovers(record).items()
            if len(varied.get(key, ())) > 1 and len(varied[key]) < max(3, self._sizes[run.group])
        }
        return replace(run, switches={**run.switches, **kept}) if kept else run


_MOST_SHOWN = 20  # mistakes of one kind
_NOISE = (
    "check_",
    "source_",
    "slurm",
    "hfu",
    "mfu",
    "samples_per",
    "recipe_",
    "config_",
    "time_to",
    "dp_in",
    "topology",
    "real_reserved",
)


def _leftovers(record: Record) -> dict[str, object]:
    return {
        key: value
        for key in record.unused()
        if key.startswith("other.")
        and key.count(".") == 1
        and not key.removeprefix("other.").startswith(_NOISE)
        and isinstance(value := record.values[key], (str, int, float, bool))
        and len(str(value)) <= 60
    }
