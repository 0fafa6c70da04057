"""A log that does not say its whole configuration, or contradicts itself, to a run without one: its figures, and what is
missing or wrong as its problem."""

from __future__ import annotations

from dataclasses import replace

from harness.contracts.runs import Measured, MeasuredRun
from harness.evidence import physics
from harness.evidence.ingest.context import Context
from harness.evidence.ingest.logs import partial
from harness.evidence.ingest.logs.build import (
    MEMORY_KINDS,
    evidence,
    run_of,
    state_of,
    step_doubts,
    steps_words,
    strategy_of,
)
from harness.evidence.ingest.logs.logged import Logged
from harness.evidence.ingest.logs.settings import Incomplete
from harness.evidence.ingest.report import LogRun, RowReport
from harness.evidence.ingest.steady import SteadyState
from projector import frameworks
from projector.errors import InputError, Problem
from projector.hardware import catalogue
from projector.workload import zoo
from projector.workload.recipe import Recipe

_UNSTATED = "not stated: "
#: Precisions by what a data sheet calls their rate, the fastest first.
_FASTEST = (("nvfp4", "fp4"), ("mxfp8", "mxfp8"), ("fp8", "fp8"), ("bf16", "bf16"), ("fp16", "fp16"), ("fp32", "fp32"))


def build_incomplete(record: Logged, dialect: str, where: str, context: Context, why: Incomplete) -> LogRun:
    """The run of a log that does not say its whole configuration: its figures, with what is missing as its problem.

    Raises :class:`InputError` where the log has no steps either: no flag would help it.
    """
    state = state_of(record)
    if state is None:
        found = "no steady step" if record.steps else "no step with a time"
        raise InputError([Problem(where, "", found, f"iteration lines of {dialect} with a time or a rate")])
    read = partial.read_without(record, state, dialect, context)
    missing = partial.missing_of(why, read.stated.gpu, read.stated.gpus)
    made = _made(record, dialect, where, context, read, state)
    run, judged = physics.marked(made.run)
    impossible = (*judged.refused, *_beyond(run, read))
    refused = (f"{_UNSTATED}{', '.join(missing)}", *impossible)
    doubts = (*judged.doubts, *made.row.doubts)
    flags = () if impossible else partial.flag_for(missing)
    row = replace(made.row, refused=refused, doubts=doubts, missing=flags)
    return replace(made, run=replace(run, problem="; ".join(refused)), row=row)


def build_contradicted(record: Logged, dialect: str, where: str, context: Context, why: InputError) -> LogRun:
    """The run of a log whose arguments, lines and user contradict each other: refused, with what the steps alone say.

    Raises ``why`` where the log has no steps with a time.
    """
    state = state_of(record)
    if state is None:
        raise why
    read = partial.read_without(record, state, dialect, context, contradicted=True)
    made = _made(record, dialect, where, context, read, state)
    reasons = tuple(str(replace(problem, where="")) for problem in why.problems)
    run, row = replace(made.run, problem="; ".join(reasons)), replace(made.row, refused=reasons)
    return replace(made, run=run, row=row, problems=why.problems)


def _beyond(run: MeasuredRun, read: partial.Reading) -> tuple[str, ...]:
    """Why the rate is none, where the model and the work of a step are known: against the fastest precision that the GPU
    has, or that any has. Nothing else of the configuration changes the FLOP of a token."""
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


def _made(
    record: Logged, dialect: str, where: str, context: Context, read: partial.Reading, state: SteadyState
) -> LogRun:
    """The run without model and recipe, and its report, before anything is said against it."""
    kind = next((kind for kind in MEMORY_KINDS if kind in read.memory), None)
    stated = read.stated
    said = {"global_batch_size": stated.global_batch_size, "seq_length": stated.seq_length}
    framework = context.framework or str(record.facts.get("framework", ""))
    run = run_of(
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
        switches={**strategy_of(record), **{name: value for name, value in said.items() if value}, **context.stated},
        problem=_UNSTATED,
        notes="; ".join(filter(None, (context.notes, evidence(state, read.scale) if read.scale else ""))),
    )
    row = RowReport(
        where=where,
        id=run.id,
        mapped=tuple(steps_words(record, dialect, state)),
        doubts=tuple(step_doubts(record, state)),
        read=read.words(state),
    )
    scale = read.scale if read.scale is not None else float("nan")
    return LogRun(run=run, row=row, dialect=dialect, record=record, state=state, scale=scale)
