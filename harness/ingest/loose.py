"""Loosely typed records of training runs → :class:`MeasuredRun`, with a report of every field of every row.

Nothing is guessed in silence: a value is mapped from a stated one, assumed (and listed in the run), or refused (the run
keeps its row with ``problem``). What no field can hold and yet distinguishes rows of one group is kept in ``switches``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from harness.ingest.importmap import ImportMap
from harness.ingest.record import Record, shown
from harness.ingest.report import Converted, RowReport
from harness.ingest.row import convert_row
from harness.runs import MeasuredRun

__all__ = ["convert"]


def convert(records: Iterable[object], where: str, header_map: ImportMap | None = None) -> Converted:
    """Convert records (mappings, as YAML, JSON or ``csv.DictReader`` give them).

    ``where``: their file, for the report. A record that is no mapping, or repeats an id, becomes a refused row.
    """
    known = header_map or ImportMap()
    pairs: list[tuple[MeasuredRun, Record]] = []
    seen: set[str] = set()
    for index, data in enumerate(records):
        place = f"{where}[{index}]"
        if isinstance(data, Mapping):
            record = Record(data, place, known.columns)
        else:
            record = Record({}, place)
            record.refuse(f"not a record: {shown(data)}")
        run = convert_row(record, index, known)
        if run.id in seen:
            record.refuse(f"duplicate id {run.id}")
            run = replace(run, id=f"{run.id}#{index}", problem="; ".join(record.refused))
        seen.add(run.id)
        pairs.append((run, record))
    runs = _with_switches(pairs)
    return Converted(runs=tuple(runs), rows=tuple(_report(run, rec) for run, (_, rec) in zip(runs, pairs, strict=True)))


def _report(run: MeasuredRun, record: Record) -> RowReport:
    return RowReport(
        where=record.where,
        id=run.id,
        mapped=tuple(record.mapped),
        assumed=tuple(record.assumed),
        refused=tuple(record.refused),
        doubts=tuple(record.doubts),
        unused=tuple(record.unused()),
    )


def _with_switches(pairs: Sequence[tuple[MeasuredRun, Record]]) -> list[MeasuredRun]:
    """Keep, in rows of one group, the short unmapped values that differ within it."""
    groups: dict[str, dict[str, set[str]]] = {}
    for run, record in pairs:
        if run.group:
            values = groups.setdefault(run.group, {})
            for key, value in _leftovers(record).items():
                values.setdefault(key, set()).add(str(value))
    sizes = {group: sum(run.group == group for run, _ in pairs) for group in groups}
    runs = []
    for run, record in pairs:
        varied = groups.get(run.group, {})
        kept = {
            key.removeprefix("other."): value
            for key, value in _leftovers(record).items()
            if len(varied.get(key, ())) > 1 and len(varied[key]) < max(3, sizes.get(run.group, 0))
        }
        runs.append(replace(run, switches={**run.switches, **kept}) if kept else run)
    return runs


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
