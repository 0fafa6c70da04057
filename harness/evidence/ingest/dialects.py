"""Training logs of any dialect to measured runs: the door to :mod:`harness.evidence.ingest.logs`. A log that does not say
its whole configuration, or contradicts itself, makes a run without one: its figures, and what is wrong as its problem.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.contracts.runs import Measured, MeasuredRun
from harness.evidence import physics
from harness.evidence.ingest.context import Context, read_context
from harness.evidence.ingest.csvtable import headers_in_markdown
from harness.evidence.ingest.logs import consistency, foreign, partial, registry
from harness.evidence.ingest.logs.build import (
    MEMORY_KINDS,
    build,
    evidence,
    run_of,
    step_doubts,
    steps_words,
    strategy_of,
    unknown_gpu,
)
from harness.evidence.ingest.logs.fold import fold
from harness.evidence.ingest.logs.logged import Logged
from harness.evidence.ingest.logs.settings import Incomplete, OtherTask, overruled
from harness.evidence.ingest.logs.source import open_source
from harness.evidence.ingest.report import Converted, LogRun, RowReport
from harness.evidence.ingest.steady import SteadyState, state_of
from projector import frameworks
from projector.errors import InputError, Problem
from projector.hardware import catalogue
from projector.workload import zoo
from projector.workload.recipe import Recipe

#: Precisions by what a data sheet calls their rate, the fastest first.
_FASTEST = (("nvfp4", "fp4"), ("mxfp8", "mxfp8"), ("fp8", "fp8"), ("bf16", "bf16"), ("fp16", "fp16"), ("fp32", "fp32"))


def build_partial(record: Logged, dialect: str, where: str, context: Context, why: InputError) -> LogRun:
    """Builds the run of a log that does not state its whole configuration (``why`` is :class:`Incomplete`): its figures,
    with what is missing as its problem; of one that contradicts itself or the user what the steps alone say.

    Raises :class:`InputError` where no step is steady: no flag would help.
    """
    state, incomplete = state_of(record), isinstance(why, Incomplete)
    if state is None:
        reason = "no steady step" if record.steps else "no step with a time"
        expected = f"iteration lines of {dialect} with a time or a rate"
        raise InputError([Problem(where, "", reason, expected)]) if incomplete else why
    read = partial.read_without(record, state, dialect, context, contradicted=not incomplete)
    run = _without_recipe(record, dialect, where, context, read, state)
    refused = tuple(str(replace(problem, where="")) for problem in why.problems)
    doubts: tuple[str, ...] = ()
    flags: tuple[tuple[str, str], ...] = ()
    if incomplete:
        judged = physics.judge(run)
        impossible = (*judged.refused, *_beyond(run, read))
        missing = partial.missing_of(why, read.stated.gpu, read.stated.gpus)
        unknown = unknown_gpu(record) if "gpu" in missing else ""
        unsaid = ", ".join(name for name in missing if name != "gpu" or not unknown)
        refused = (*filter(None, (f"not stated: {unsaid}" if unsaid else "", unknown)), *impossible)
        doubts = judged.doubts
        flags = () if impossible else partial.flag_for(missing)
    tokens = partial.steady_median(record.tokens, state) if record.basis != "tokens" else None
    against = (*consistency.derived(run, record, state, tokens, ""), *consistency.rates(run, record, state, tokens))
    row = RowReport(
        where=where,
        id=run.id,
        mapped=tuple(steps_words(record, dialect, state)),
        refused=refused,
        doubts=(*doubts, *overruled(record, context), *step_doubts(record, state), *dict.fromkeys(map(str, against))),
        read=read.words(state),
        missing=flags,
    )
    scale = read.scale if read.scale is not None else float("nan")
    problems = () if incomplete else why.problems
    run = replace(run, problem="; ".join(refused))
    return LogRun(run=run, row=row, dialect=dialect, record=record, state=state, scale=scale, problems=problems)


def _beyond(run: MeasuredRun, read: partial.Reading) -> tuple[str, ...]:
    """Returns why the rate is impossible, where the model and the work of a step are known: it is checked against the
    fastest precision that the GPU has, or that any has. Nothing else of the configuration changes the FLOP of a token."""
    name, stated = zoo.find(run.model_name) if run.model_name else None, read.stated
    if name is None or not run.measured.tgs or not stated.global_batch_size or not stated.seq_length:
        return ()
    known = catalogue.gpu(run.gpu).peak if catalogue.knows_gpu(run.gpu) else {"fp4": 1.0}
    precision = next(word for word, rate in _FASTEST if rate in known or word == "fp32")
    recipe = Recipe(
        micro_batch_size=1,
        global_batch_size=stated.global_batch_size,
        seq_length=stated.seq_length,
        precision=precision,
    )
    alone = replace(run, gpus=1, model=zoo.load(name), recipe=recipe, measured=Measured(tgs=run.measured.tgs))
    return tuple(text for text in physics.judge(alone).refused if " peak of " in text)


def _without_recipe(
    record: Logged, dialect: str, where: str, context: Context, read: partial.Reading, state: SteadyState
) -> MeasuredRun:
    """Builds the run without model and recipe, before anything is said against it."""
    kind = next((kind for kind in MEMORY_KINDS if kind in read.memory), None)
    stated = read.stated
    work = {"global_batch_size": stated.global_batch_size, "seq_length": stated.seq_length}
    framework = context.framework or str(record.facts.get("framework", ""))
    return run_of(
        record,
        where,
        context,
        framework or (dialect if dialect in frameworks.names() else ""),
        gpu=stated.gpu,
        gpus=stated.gpus or 0,
        model=None,
        recipe=None,
        model_name=stated.model_name,
        measured=Measured(
            step_seconds=float(f"{read.step_seconds:.9g}") if read.step_seconds else None,
            tgs=float(f"{read.tgs:.9g}") if read.tgs else None,
            peak_memory_gib=round(read.memory[kind], 3) if kind else None,
            memory_kind=kind,
            samples=state.kept,
            rel_std=state.rel_std,
        ),
        switches={**strategy_of(record), **{name: value for name, value in work.items() if value}, **context.stated},
        notes="; ".join(filter(None, (context.notes, evidence(state, read.scale) if read.scale else ""))),
    )


def is_log_document(path: Path) -> bool:
    """Returns whether a JSON file holds a benchmark's steps or a trace, and no table of records."""
    try:
        return registry.is_document(open_source(path).head())
    except InputError:
        return False


def is_table_of_runs(path: Path) -> bool:
    """Returns whether a text of Markdown holds a table with columns of a run, and no log."""
    try:
        source = open_source(path)
        return bool(headers_in_markdown(source.head())) and registry.detect(source) is None
    except InputError:
        return False


def read_log(path: str | Path, context: Context | None = None, *, incomplete: bool = False) -> Converted:
    """Reads the runs of one training log (``-``: standard input; gzip, bzip2 and xz accepted).

    Raises :class:`InputError` for a log that no dialect recognises, or without the arguments it needs, in itself or in
    ``context``. With ``incomplete`` a log that lacks arguments gives what it has, and one that contradicts itself what its
    steps alone say (:func:`build_partial`).
    """
    user_context = context if context is not None else read_context(None)
    dialect, records = read_records_of_log(path)
    logs: list[LogRun] = []
    problems: list[Problem] = []
    kinds: set[type[InputError]] = set()
    for record in records:
        try:
            logs.append(_build_run(record, dialect, str(path), user_context, incomplete))
        except InputError as error:
            kinds.add(type(error))
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise (Incomplete if kinds == {Incomplete} else InputError)(problems)
    return Converted(runs=tuple(log.run for log in logs), rows=tuple(log.row for log in logs), logs=tuple(logs))


def _build_run(record: Logged, dialect: str, where: str, context: Context, incomplete: bool) -> LogRun:
    try:
        return build(record, dialect, where, context)
    except OtherTask:
        raise
    except InputError as why:
        measured = record.steps or record.failure is not None or record.kernels is not None
        if not measured and not isinstance(why, Incomplete):  # whatever else is wrong does not matter
            raise InputError([Problem(where, "steps", record.why_none, _STEPS)]) from None
        if not incomplete:
            raise
        return build_partial(record, dialect, where, context, why)


def read_records_of_log(path: str | Path) -> tuple[str, list[Logged]]:
    """Returns (dialect, runs as logged) without any configuration. Raises :class:`InputError` as :func:`read_log`."""
    source = open_source(path)
    try:
        dialect = registry.detect(source)
        records = fold(registry.events_of(source, dialect), source.stamp) if dialect is not None else []
        for below in registry.BUILT_ON.get(dialect or "", ()):
            if not any(record.steps for record in records):  # whose own lines have no time, where those below may
                again, headed = fold(registry.events_of(source, below), source.stamp), records[-1]
                if any(record.steps for record in again):
                    again[-1].arguments = again[-1].arguments or headed.arguments
                    dialect, records = below, again
    except (OSError, EOFError) as error:
        raise InputError([Problem(str(path), "", str(error), "a readable file")]) from None
    if dialect is None:
        content = foreign.unread(source.lines()) or "no line of a known trainer"
        raise InputError([Problem(str(path), "", content, _EXPECTED)])
    for failure in (record.failure for record in records):
        if failure is not None and failure.kind == "unreadable":
            raise InputError([Problem(str(path), f"line {failure.line}", failure.text, "a whole JSON document")])
    why = foreign.unread(source.lines()) if not any(record.steps for record in records) else None
    ends = "the compressed data ends early; what came before it is read" if source.truncated else None
    for record in records:
        record.notes += filter(None, (why, ends))
    return dialect, records


_STEPS = "a training log: lines with the time of a step, or a rate"
_EXPECTED = f"iteration lines of a known log dialect ({', '.join(registry.NAMES)})"
