"""A log's record and its settings to a :class:`MeasuredRun`, with what was read, cut and doubted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.contracts.runs import Measured, MeasuredRun, Source, Stack
from harness.evidence import physics
from harness.evidence.ingest.context import Context
from harness.evidence.ingest.logs import consistency, partial
from harness.evidence.ingest.logs.logged import Logged
from harness.evidence.ingest.logs.settings import Settings, settings
from harness.evidence.ingest.report import LogRun, RowReport
from harness.evidence.ingest.steady import SteadyState, state_of, words
from projector.errors import InputError, nearest
from projector.hardware import catalogue

_DRIFT = 0.02  # change of level between the halves of a log worth saying
_RUN = 10  # steps that a run of its own has at least
MEMORY_KINDS = ("device", "reserved", "allocated")  # of two figures, the one that holds the other


def timers_of(record: Logged) -> tuple[tuple[str, float], ...]:
    """Returns (name, mean seconds a step), longest first, of the timers that most steps print."""
    often = max(max((count for _, count in record.timers.values()), default=0) / 2, record.steps / 4)
    means = ((name, total / count) for name, (total, count) in record.timers.items() if count >= often)
    return tuple(sorted(means, key=lambda timer: -timer[1]))


def unknown_gpu(record: Logged) -> str:
    """Returns the message for a GPU that the log names and the catalogue does not know; empty where the log names none."""
    device = str(record.facts.get("gpu") or "")
    chips = re.findall(r"[a-z]+\d+\w*", device.lower())
    same_chip = [name for name in catalogue.gpu_names() if name.partition("_")[0] in chips]
    expected = f"a known name; nearest: {', '.join(same_chip)}" if same_chip else nearest(device, catalogue.gpu_names())
    return f"unknown gpu {device!r}, expected {expected}" if device else ""


def build(record: Logged, dialect: str, where: str, context: Context) -> LogRun:
    """Builds the run of a log. Raises :class:`InputError` where log and context do not make a whole configuration."""
    config = settings(record, dialect, where, context)
    state = state_of(record)
    unstated = {"gpus": "gpus not stated", "gpu": unknown_gpu(record) or "gpu not stated"}
    refused = [why for name, why in unstated.items() if not getattr(config, name)]
    recipe = config.recipe
    scale = partial.seconds_per_unit(record, recipe.global_batch_size, recipe.seq_length, config.gpus) or float("nan")
    measured = _measured(record, state, config, scale, refused)
    run = run_of(
        record,
        where,
        context,
        config.framework,
        config.date,
        gpu=config.gpu,
        gpus=config.gpus or 0,
        model=config.model,
        model_name=config.model.name,
        recipe=config.recipe,
        measured=measured,
        switches=strategy_of(record),
        assumed=config.assumed,
        unread=config.unread,
        problem="; ".join(refused),
        notes=context.notes,
    )
    tokens = None if state is None else partial.steady_median(record.tokens, state)
    if state is not None and (wrong := list(consistency.derived(run, record, state, tokens, where))):
        raise InputError(wrong)
    run, judged = physics.marked(run)
    refused += judged.refused
    rates = () if state is None else consistency.rates(run, record, state, tokens)
    # what a flag of ``harness ingest`` can supply, where nothing else stops the run
    missing = partial.missing_of(None, config.gpu, config.gpus)
    flags = () if judged.refused or len(refused) > len(missing) else partial.flag_for(missing)
    arguments = (f"{config.dumped} arguments from line {config.line}",) if config.dumped else ()
    row = RowReport(
        where=where,
        id=run.id,
        mapped=(*steps_words(record, dialect, state, scale), *arguments),
        assumed=config.assumed,
        refused=tuple(refused),
        doubts=(*config.doubts, *judged.doubts, *step_doubts(record, state), *map(str, rates)),
        unread=config.unread,
        missing=flags,
    )
    if state is not None:
        run = replace(run, notes="; ".join(filter(None, (run.notes, evidence(state, scale)))))
    return LogRun(run=run, row=row, dialect=dialect, record=record, state=state, scale=scale)


def _measured(record: Logged, state: SteadyState | None, found: Settings, scale: float, refused: list[str]) -> Measured:
    peak, kind = _peak_memory(record, found)
    if state is None or not scale > 0:
        if record.failure is not None and record.failure.kind == "out-of-memory":
            return Measured(status="out-of-memory")
        refused.append("no steps with a time" if state is None else "step time unknown without the number of GPUs")
        return Measured(peak_memory_gib=peak, memory_kind=kind)
    seconds = state.value * scale
    recipe = found.recipe
    tgs = recipe.global_batch_size * recipe.seq_length / seconds / found.gpus if found.gpus else None
    derived = "step_seconds from tgs" if record.basis == "tokens" else "tgs from step_seconds"
    printed = partial.steady_median(record.tflops, state)
    return Measured(
        step_seconds=float(f"{seconds:.9g}"),
        tgs=float(f"{tgs:.9g}") if tgs else None,
        tflops_per_gpu=(round(printed, 3) or None) if printed else None,  # a toy prints 0.0
        peak_memory_gib=peak,
        memory_kind=kind,
        samples=state.kept,
        rel_std=state.rel_std,
        derived=(derived,) if tgs else (),
    )


def _peak_memory(record: Logged, config: Settings) -> tuple[float | None, str | None]:
    """Returns the largest memory use of the widest kind; of a printed ratio alone, that share of the GPU's memory."""
    for kind in MEMORY_KINDS:
        if kind in record.memory:
            return round(record.memory[kind], 3), kind
    if record.memory_ratio and config.gpu:
        capacity = catalogue.gpu(config.gpu).memory_bytes / 2**30
        return round(record.memory_ratio * capacity, 3), "device"
    return None, None


def step_doubts(record: Logged, state: SteadyState | None) -> list[str]:
    """Returns the doubts that the lines themselves raise, whatever the configuration."""
    doubts = list(record.notes)
    if record.failure is not None and record.steps:
        doubts.append(f"line {record.failure.line}: the job failed: {record.failure.text[:80]}")
    starts = int(record.segment[-1]) if len(record.segment) else 0
    if starts > max(3, record.steps / _RUN):
        doubts.append(f"the step goes back {starts} times: several runs at once in one log?")
    if record.conflicts:
        doubts.append(f"{record.conflicts} lines repeat a step with another time: several runs in one log?")
    if state is not None and state.drift is not None and abs(state.drift) > _DRIFT:
        doubts.append(f"the second half of the steps is {state.drift:+.1%} off the first")
    if state is not None and state.kept < 3:
        doubts.append(f"only {state.kept} step{'s' if state.kept > 1 else ''}: no interval")
    return doubts


def steps_words(record: Logged, dialect: str, state: SteadyState | None, scale: float = float("nan")) -> list[str]:
    """Returns texts that describe the steps; with ``scale`` (seconds per unit of the record's values) the step time, too."""
    texts = [f"dialect {dialect}", f"{record.steps} steps"]
    if record.repeated:
        texts.append(f"{record.repeated} lines repeat a step")
    if len(record.segment) and record.segment[-1]:
        texts.append(f"{int(record.segment[-1]) + 1} starts")
    if state is not None and scale > 0:
        texts.append(f"step_seconds={state.value * scale:.6g} (median of {state.kept})")
    return texts + ([f"cut: {words(cut)}" for cut in state.cuts] if state is not None else [])


def evidence(state: SteadyState, scale: float) -> str:
    """Returns the interval and the cuts in one line, for the run's notes."""
    cuts = (f"cut {words(cut)}" for cut in state.cuts)
    return ", ".join((f"median of {state.kept} steps", *partial.interval(state, scale), *cuts))


def run_of(record: Logged, where: str, context: Context, framework: str, date: str = "", **stated: Any) -> MeasuredRun:
    """Returns the run of a log: ``stated`` holds configuration and figures, ``context`` what the user says beside."""
    label = re.sub(r"[^\w.-]+", "-", record.name).strip("-")
    return MeasuredRun(
        id="-".join(filter(None, (context.id or _file_stem(where), label))),
        source=Source(title=Path(where).name if where != "-" else "standard input", kind="log"),
        gpus_per_node=context.gpus_per_node,
        cluster=context.cluster or None,
        stack=Stack(
            framework=framework,
            version=context.version or str(record.facts.get("version", "")),
            date=context.date or str(record.facts.get("date", date)),
        ),
        group=context.group,
        **stated,
    )


def strategy_of(record: Logged) -> dict[str, object]:
    """Returns the switch with the name that a benchmark gives to its parallel sizes; empty where it gives none."""
    strategy = record.facts.get("strategy")
    return {"strategy": strategy} if strategy else {}


def _file_stem(where: str) -> str:
    """Strips the suffixes that mark a (compressed) log from the file's name."""
    if where == "-":
        return "stdin"
    name = Path(where).name
    for suffix in (".gz", ".bz2", ".xz"):
        name = name.removesuffix(suffix)
    return name.rpartition(".")[0] or name
