"""``harness ingest``: training logs and results tables in, strict measured runs and a row-by-row report out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.contracts.runs import MeasuredRun
from harness.evidence import dataset, run_text
from harness.evidence.ingest import stream
from harness.evidence.ingest.context import Context
from harness.evidence.ingest.csvtable import CsvTable, is_csv
from harness.evidence.ingest.dialects import is_log_document, is_table_of_runs, read_log
from harness.evidence.ingest.importmap import ImportMap, read_import_map
from harness.evidence.ingest.logs.settings import Incomplete
from harness.evidence.ingest.loose import convert, converted, gathered, refuse_foreign
from harness.evidence.ingest.report import Converted, IngestReport, RowReport
from harness.evidence.ingest.tables import read_records, read_text
from harness.evidence.physics import judge
from projector.errors import InputError, Problem, collecting_into, raise_all
from projector.io.files import write_whole
from projector.io.rows import grouped

_HEADER = "Written by `harness ingest`: figures as their sources state them; a row that cannot be projected says why."
_FIRST = "a log that says it, or the configuration beside it: --recipe FILE, with --anchor --config FILE"
_PACKED = (".gz", ".bz2", ".xz")
_TABLES = (".yaml", ".yml", ".json", ".jsonl", ".csv", ".tsv")


def ingest(
    paths: Sequence[str | Path],
    out: str | Path | None = None,
    header_map: str | Path | ImportMap | None = None,
    said: Context | None = None,
) -> IngestReport:
    """Reads logs and tables and, with ``out``, writes strict YAML: a file, or a folder (see ``files`` of the map).

    ``header_map``: see :class:`ImportMap`. ``said``: what a user states of the logs and rows that leave it out. An input
    that cannot be read costs the others nothing: its mistakes are the report's ``problems``; so are those of a log that
    contradicts itself, whose figures are reported and not written. Rows that cannot be used are written with their
    ``problem``. Raises :class:`InputError` where no input can be read, and for the options.
    """
    known = (
        header_map if isinstance(header_map, ImportMap) else read_import_map(Path(header_map)) if header_map else None
    )
    context = said if said is not None else Context()
    if not paths:
        raise InputError([Problem("ingest", "", "no path", "at least one log or table")])
    read: list[tuple[Path, Converted]] = []
    problems: list[Problem] = []
    for path in dict.fromkeys(map(Path, paths)):
        with collecting_into(problems):
            found = _load(path, known, context, incomplete=True)
            read.append((path, found))
            problems += [problem for log in found.logs for problem in log.problems]
    inputs = _distinct(read, problems)
    if not inputs:
        raise InputError(problems)
    runs = tuple(run for found in inputs for run in found.runs)
    denied = {log.run.id for found in inputs for log in found.logs if log.problems}
    kept = [run for run in runs if run.id not in denied]
    written = _write(kept, Path(out), known or ImportMap(), read[0][0]) if out is not None else {}
    return IngestReport(
        runs=runs,
        rows=tuple(row for found in inputs for row in found.rows),
        logs=tuple(log for found in inputs for log in found.logs),
        written=written,
        problems=tuple(problems),
    )


def _distinct(read: Sequence[tuple[Path, Converted]], problems: list[Problem]) -> list[Converted]:
    """Returns the inputs in order, without logs of whose run a table holds the same under its id (``harness measure``
    writes both), and without those that repeat an id or whose log's run a table holds under another: these are added to
    ``problems``. Logs are called by their files; two of one name get the names of their folders, too."""
    tables = [(path, run) for path, found in read if not found.logs for run in found.runs]
    tabled = {key: path for path, run in tables if (key := _fingerprint(run))}
    ids = {(run.id, _fingerprint(run)) for _, run in tables}
    counts = Counter(run.id for _, found in read for run in found.runs)
    first: dict[str, Path] = {}
    inputs: list[Converted] = []
    for path, found in read:
        again = [(run.id, tabled[key]) for run in found.runs if found.logs and (key := _fingerprint(run)) in tabled]
        if again and all((run.id, _fingerprint(run)) in ids for run in found.runs):
            continue
        problems += [Problem(str(path), "id", name, f"a run that {other} does not hold, too") for name, other in again]
        if again:
            continue
        repeats = bool(found.logs) and any(counts[run.id] > 1 for run in found.runs)
        named = _with_folder(found, path) if repeats else found
        twice = [run.id for run in named.runs if run.id in first]
        problems += [Problem(str(path), "id", name, f"an id that {first[name]} does not have") for name in twice]
        first.update(dict.fromkeys((run.id for run in named.runs), path))
        inputs += [] if twice else [named]
    return inputs


def _fingerprint(run: MeasuredRun) -> tuple[object, ...] | None:
    """Returns what differs, to six digits, between two runs of the same settings; None without a step time or a recipe."""
    step, recipe = run.measured.step_seconds, run.recipe
    if step is None or recipe is None:
        return None
    return run.gpu, run.gpus, recipe.seq_length, recipe.global_batch_size, f"{step:.6g}"


def _with_folder(converted_log: Converted, path: Path) -> Converted:
    """Returns the runs of a log with the folder's name before theirs."""
    folder = re.sub(r"[^\w.-]+", "-", path.resolve().parent.name).strip("-")
    logs = tuple(
        replace(
            log, run=replace(log.run, id=f"{folder}-{log.run.id}"), row=replace(log.row, id=f"{folder}-{log.row.id}")
        )
        for log in converted_log.logs
    )
    return Converted(runs=tuple(log.run for log in logs), rows=tuple(log.row for log in logs), logs=logs)


def load(path: str | Path, header_map: ImportMap | None = None, said: Context | None = None) -> Converted:
    """Reads the runs of one file, whatever it is: a strict or loose table, or a training log (``-``: a log on stdin).

    ``said``: what a user states of a log. Raises :class:`InputError` for what cannot be read, and for a log without its
    whole configuration.
    """
    try:
        return _load(Path(path), header_map, said if said is not None else Context())
    except Incomplete as why:
        raise Incomplete(replace(problem, expected=_FIRST) for problem in why.problems) from None


def _load(path: Path, header_map: ImportMap | None, context: Context, *, incomplete: bool = False) -> Converted:
    if not is_table(path):
        return read_log(path, context=context, incomplete=incomplete)
    usual = {name: value for name in ("gpu", "gpus", "framework") if (value := getattr(context, name))}
    known = replace(header_map or ImportMap(), usual=usual)
    if is_csv(path):
        stream.refuse_long(path)
        table = CsvTable(path, known.columns)
        table.refuse_repeated_ids()
        return gathered(converted(table.records(), known), path.name)
    text = read_text(path)
    runs = dataset.remembered(text)
    if runs is None:
        records = read_records(path)
        if not dataset.is_strict(records):
            refuse_foreign(records, str(path), known)
            try:  # rows are called by the file's name; mistakes name the file's path
                return convert(records, path.name, known)
            except InputError as error:
                raise InputError(replace(problem, where=str(path)) for problem in error.problems) from None
        runs, problems = dataset.parse(records, str(path))
        raise_all(problems)
        dataset.remember(text, runs)
    return Converted(runs=tuple(runs), rows=tuple(_strict_report(run, path) for run in runs))


def is_table(path: Path) -> bool:
    """Returns whether a file is a table of runs by its name, and not a log, a benchmark file or a trace."""
    if path.suffix == ".md":
        return is_table_of_runs(path)
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in _PACKED]
    suffix = suffixes[-1] if suffixes else ""
    return suffix in _TABLES and not (suffix not in (".yaml", ".yml") and is_log_document(path))


def _strict_report(run: MeasuredRun, path: Path) -> RowReport:
    refused = (run.problem,) if run.problem else ()
    return RowReport(
        where=path.name, id=run.id, assumed=run.assumed, unread=run.unread, refused=refused, doubts=judge(run).doubts
    )


def stream_table(path: Path, out: Path | None, header_map: str | Path | None) -> stream.Totals:
    """Imports one long CSV row by row (:mod:`stream`) as :func:`ingest`, in a memory that does not grow with the table."""
    known = read_import_map(Path(header_map)) if header_map else ImportMap()
    files = None if out is None else (lambda name: _output_file(name, out, known, path))
    return stream.stream(path, known, files, _HEADER)


def _output_file(name: str, out: Path, known: ImportMap, first: Path) -> Path:
    """Returns where the run of this id is written."""
    if out.suffix in (".yaml", ".yml"):
        return out
    stem = "stdin" if str(first) == "-" else first.name.partition(".")[0]
    return out / f"{known.file_of(name, stem)}.yaml"


def _write(runs: Iterable[MeasuredRun], out: Path, known: ImportMap, first: Path) -> dict[str, int]:
    files = grouped((_output_file(run.id, out, known, first), run) for run in runs)
    texts = {path: run_text.to_yaml(members) for path, members in files.items()}
    for path, text in texts.items():
        write_whole(path, f"# {_HEADER}\n{text}")
    return {str(path): len(members) for path, members in files.items()}
