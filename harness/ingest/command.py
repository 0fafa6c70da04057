"""``harness ingest``: training logs and results tables in, strict measured runs and a row-by-row report out."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness import dataset
from harness.ingest.context import Context, read_context
from harness.ingest.dialects import is_log_document, read_log
from harness.ingest.importmap import ImportMap, read_import_map
from harness.ingest.logs.build import LogRun
from harness.ingest.loose import convert
from harness.ingest.report import Converted, IngestReport, RowReport
from harness.ingest.tables import read_records
from harness.runs import MeasuredRun
from projector.errors import InputError, Problem

__all__ = ["ingest", "is_table", "load", "replace_file"]

_HEADER = "Written by `harness ingest`: figures as their sources state them; a row that cannot be projected says why."
_MODE = 0o644  # a temporary file is its owner's alone, a result is for all to read
_PACKED = (".gz", ".bz2", ".xz")
_TABLES = (".yaml", ".yml", ".json", ".jsonl", ".csv", ".tsv")


def ingest(
    paths: Sequence[str | Path],
    out: str | Path | None = None,
    header_map: str | Path | ImportMap | None = None,
    recipe: str | Path | None = None,
    gpu: str | None = None,
    gpus: int | None = None,
) -> IngestReport:
    """Read logs and tables and, with ``out``, write strict YAML: a file, or a folder (see ``files`` of the map).

    ``header_map``: see :class:`ImportMap`. ``recipe``: see :class:`Context`, for logs without arguments; ``gpu`` and
    ``gpus``: of the logs.
    Nothing is written when an input is unreadable; rows that cannot be used are written with their ``problem``.
    Raises :class:`InputError` with the mistakes of all inputs.
    """
    known = (
        header_map if isinstance(header_map, ImportMap) else read_import_map(Path(header_map)) if header_map else None
    )
    runs: list[MeasuredRun] = []
    rows: list[RowReport] = []
    logs: list[LogRun] = []
    problems: list[Problem] = []
    context = read_context(recipe, gpu, gpus)
    for path in paths:
        try:
            found = _load(Path(path), known, context)
        except InputError as error:
            problems += error.problems
            continue
        runs += found.runs
        rows += found.rows
        logs += found.logs
    counts = Counter(run.id for run in runs)
    twice = [name for name, n in counts.items() if n > 1]
    problems += [Problem("ingest", "id", name, "unique ids among all inputs") for name in sorted(twice)]
    if problems:
        raise InputError(problems)
    if not paths:
        raise InputError([Problem("ingest", "", "no path", "at least one log or table")])
    written = _write(runs, Path(out), known or ImportMap(), Path(paths[0])) if out is not None else {}
    return IngestReport(runs=tuple(runs), rows=tuple(rows), logs=tuple(logs), written=written)


def load(path: str | Path, header_map: ImportMap | None = None, recipe: str | Path | None = None) -> Converted:
    """The runs of one file, whatever it is: a strict or loose table, or a training log (``-``: a log on stdin)."""
    return _load(Path(path), header_map, read_context(recipe))


def _load(path: Path, header_map: ImportMap | None, context: Context) -> Converted:
    if not is_table(path):
        return read_log(path, context=context)
    records = read_records(path)
    if not dataset.is_strict(records):
        return convert(records, path.name, header_map)
    runs, problems = dataset.parse(records, str(path))
    if problems:
        raise InputError(problems)
    return Converted(runs=tuple(runs), rows=tuple(_strict_row(run, path) for run in runs))


def is_table(path: Path) -> bool:
    """Whether a file is a table of runs by its name, and not a log, a benchmark file or a trace."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in _PACKED]
    suffix = suffixes[-1] if suffixes else ""
    return suffix in _TABLES and not (suffix == ".json" and is_log_document(path))


def _strict_row(run: MeasuredRun, path: Path) -> RowReport:
    refused = (run.problem,) if run.problem else ()
    return RowReport(where=path.name, id=run.id, assumed=run.assumed, refused=refused)


def _write(runs: Iterable[MeasuredRun], out: Path, known: ImportMap, first: Path) -> dict[str, int]:
    if out.suffix in (".yaml", ".yml"):
        files = {out: list(runs)}
    else:
        files = {}
        stem = "stdin" if str(first) == "-" else first.name.partition(".")[0]
        for run in runs:
            files.setdefault(out / f"{known.file_of(run.id, stem)}.yaml", []).append(run)
    texts = {path: dataset.to_yaml(members) for path, members in files.items()}
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, f"# {_HEADER}\n{text}".encode())
    return {str(path): len(members) for path, members in files.items()}


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: what stood there stays until the new one is complete."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as new:
        new.write(content)
    try:
        os.chmod(new.name, _MODE)
        os.replace(new.name, path)
    except OSError:
        os.unlink(new.name)
        raise
