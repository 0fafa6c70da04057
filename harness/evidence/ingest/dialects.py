"""Training logs of any dialect to measured runs: the door to :mod:`harness.evidence.ingest.logs`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.evidence.ingest.context import Context, read_context
from harness.evidence.ingest.logs import foreign, registry
from harness.evidence.ingest.logs.build import build
from harness.evidence.ingest.logs.fold import fold
from harness.evidence.ingest.logs.incomplete import build_contradicted, build_incomplete
from harness.evidence.ingest.logs.logged import Logged
from harness.evidence.ingest.logs.settings import Incomplete, OtherTask
from harness.evidence.ingest.logs.source import open_source
from harness.evidence.ingest.report import Converted, LogRun
from projector.errors import InputError, Problem


def is_log_document(path: Path) -> bool:
    """Whether a JSON file holds a benchmark's steps or a trace, and no table of records."""
    try:
        return registry.is_document(open_source(path).head())
    except InputError:
        return False


def read_log(path: str | Path, context: Context | None = None, *, incomplete: bool = False) -> Converted:
    """The runs of one training log (``-``: standard input; gzip, bzip2 and xz accepted).

    Raises :class:`InputError` for a log that no dialect recognises, or without the arguments it needs, in itself or in
    ``context``; with ``incomplete`` a log that only lacks them gives what it has (:func:`build_incomplete`), one that
    contradicts itself what its steps alone say (:func:`build_contradicted`).
    """
    beside = context if context is not None else read_context(None)
    dialect, records = read_records_of_log(path)
    made: list[LogRun] = []
    problems: list[Problem] = []
    kinds: set[type[InputError]] = set()
    for record in records:
        try:
            made.append(_built(record, dialect, str(path), beside, incomplete))
        except InputError as error:
            kinds.add(type(error))
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise (Incomplete if kinds == {Incomplete} else InputError)(problems)
    return Converted(runs=tuple(log.run for log in made), rows=tuple(log.row for log in made), logs=tuple(made))


def _built(record: Logged, dialect: str, where: str, context: Context, incomplete: bool) -> LogRun:
    try:
        return build(record, dialect, where, context)
    except Incomplete as why:
        if not incomplete:
            raise
        return build_incomplete(record, dialect, where, context, why)
    except OtherTask:
        raise
    except InputError as why:
        if _without_steps(record):
            raise InputError([Problem(where, "steps", record.why_none, _STEPS)]) from None
        if not incomplete:
            raise
        return build_contradicted(record, dialect, where, context, why)


def _without_steps(record: Logged) -> bool:
    """Nothing was measured: whatever else is wrong does not matter."""
    return not record.steps and record.failure is None and record.kernels is None


def read_records_of_log(path: str | Path) -> tuple[str, list[Logged]]:
    """(dialect, runs as the log has them): without any configuration. Raises :class:`InputError` as above."""
    source = open_source(path)
    try:
        dialect = registry.detect(source)
        records = fold(registry.events_of(source, dialect), source.stamp) if dialect is not None else []
    except (OSError, EOFError) as error:
        raise InputError([Problem(str(path), "", str(error), "a readable file")]) from None
    if dialect is None:
        found = foreign.unread(source.lines()) or "no line of a known trainer"
        raise InputError([Problem(str(path), "", found, _EXPECTED)])
    _unreadable(records, path)
    if not any(record.steps for record in records) and (why := foreign.unread(source.lines())) is not None:
        for record in records:
            record.notes.append(why)
    if source.truncated:
        for record in records:
            record.notes.append("the compressed data ends early; what came before it is read")
    return dialect, records


_STEPS = "a training log: lines with the time of a step, or a rate"
_EXPECTED = f"iteration lines of a known log dialect ({', '.join(registry.NAMES)})"


def _unreadable(records: Iterable[Logged], path: str | Path) -> None:
    for record in records:
        if record.failure is not None and record.failure.kind == "unreadable":
            place = f"line {record.failure.line}"
            raise InputError([Problem(str(path), place, record.failure.text, "a whole JSON document")])
