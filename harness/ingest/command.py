"""``harness ingest``: training logs and results tables in, strict measured runs and a row-by-row report out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness import dataset
from harness.ingest.dialects import read_log
from harness.ingest.importmap import ImportMap, read_import_map
from harness.ingest.loose import convert
from harness.ingest.report import Converted, IngestReport, RowReport
from harness.ingest.tables import read_records
from harness.runs import MeasuredRun
from projector.errors import InputError, Problem

__all__ = ["ingest", "load"]

_HEADER = "Written by `harness ingest`: figures as their sources state them; a row that cannot be projected says why."
_TABLES = (".yaml", ".yml", ".json", ".jsonl", ".csv", ".tsv")


def ingest(
    paths: Sequence[str | Path],
    out: str | Path | None = None,
    header_map: str | Path | ImportMap | None = None,
    recipe: str | Path | None = None,
) -> IngestReport:
    """Read logs and tables and, with ``out``, write strict YAML: a file, or a folder (see ``files`` of the map).

    ``header_map``: see :class:`ImportMap`. ``recipe``: a YAML of recipe, model and GPU for logs without arguments.
    Nothing is written when an input is unreadable; rows that cannot be used are written with their ``problem``.
    Raises :class:`InputError` with the mistakes of all inputs.
    """
    known = (
        header_map if isinstance(header_map, ImportMap) else read_import_map(Path(header_map)) if header_map else None
    )
    runs: list[MeasuredRun] = []
    rows: list[RowReport] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            found = load(path, known, recipe)
        except InputError as error:
            problems += error.problems
            continue
        runs += found.runs
        rows += found.rows
    counts = Counter(run.id for run in runs)
    twice = [name for name, n in counts.items() if n > 1]
    problems += [Problem("ingest", "id", name, "unique ids among all inputs") for name in sorted(twice)]
    if problems:
        raise InputError(problems)
    if not paths:
        raise InputError([Problem("ingest", "", "no path", "at least one log or table")])
    written = _write(runs, Path(out), known or ImportMap(), Path(paths[0])) if out is not None else {}
    return IngestReport(runs=tuple(runs), rows=tuple(rows), written=written)


def load(path: str | Path, header_map: ImportMap | None = None, recipe: str | Path | None = None) -> Converted:
    """The runs of one file, whatever it is: a strict or loose table, or a training log (``-``: a log on stdin)."""
    path = Path(path)
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if not any(suffix in _TABLES for suffix in suffixes[-1:] if suffix != ".gz") and ".gz" not in suffixes:
        return read_log(path, recipe)
    if ".gz" in suffixes and not (len(suffixes) > 1 and suffixes[-2] in _TABLES):
        return read_log(path, recipe)
    records = read_records(path)
    if not dataset.is_strict(records):
        return convert(records, path.name, header_map)
    runs, problems = dataset.parse(records, str(path))
    if problems:
        raise InputError(problems)
    return Converted(runs=tuple(runs), rows=tuple(_strict_row(run, path) for run in runs))


def _strict_row(run: MeasuredRun, path: Path) -> RowReport:
    refused = (run.problem,) if run.problem else ()
    return RowReport(where=path.name, id=run.id, assumed=run.assumed, refused=refused)


def _write(runs: Iterable[MeasuredRun], out: Path, known: ImportMap, first: Path) -> dict[str, int]:
    if out.suffix in (".yaml", ".yml"):
        files = {out: list(runs)}
    else:
        files = {}
        for run in runs:
            files.setdefault(out / f"{known.file_of(run.id, first.name.partition('.')[0])}.yaml", []).append(run)
    for path, members in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        dataset.write(members, path, header=_HEADER)
    return {str(path): len(members) for path, members in files.items()}
