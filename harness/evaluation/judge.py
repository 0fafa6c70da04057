"""Judges measured runs of logs and tables by the step time that measured runs of others let expect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.contracts.runs import MeasuredRun
from harness.evidence.ingest.command import ingest
from harness.evidence.ingest.context import Context, read_context
from harness.evidence.ingest.logs.build import timers_of
from harness.evidence.ingest.report import RowReport
from harness.predictors.ours import Ours, cluster_of
from harness.score.run_verdict import RunVerdict, Span, values
from projector.errors import InputError, NoMeasurement, Problem, Unsupported, raise_all
from projector.expectation import Knowledge, facts_of

_INSIDE = ("compute_s", "host_s", "tp_s", "ep_s", "cp_s", "pp_s", "bubble_s")
#: Spans of Megatron-LM's timers: name, parts of a projection, timers that are added, timers that are taken off.
#: ``optimizer`` begins behind the reduction of gradients and ends behind the gathering of parameters
#: (NVIDIA/Megatron-LM, megatron/training/training.py, and megatron/core/optimizer/distrib_optimizer.py).
_SPANS = (
    ("forward and backward passes", _INSIDE, ("forward-backward",), ("all-grads-sync",)),
    ("gradient exchange", ("dp_s",), ("all-grads-sync", "params-all-gather"), ()),
    ("optimizer", ("optimizer_s",), ("optimizer",), ("params-all-gather",)),
)


def judged(paths: Sequence[Path], said: Context) -> tuple[list[RunVerdict], tuple[Problem, ...]]:
    """Returns the runs of logs and tables, each judged, and the problems of files that could not be read. ``said``: the
    context that the logs do not state. Raises :class:`InputError` where no file can be read."""
    ingested = ingest(paths, said=said)
    timers = {log.run.id: dict(timers_of(log.record)) for log in ingested.logs}
    rows = {row.id: row for row in ingested.rows}
    judgements = [_judged(run, timers.get(run.id, {}), rows[run.id]) for run in ingested.runs]
    return judgements, ingested.problems


def score(log: Path, config: Path | None, gpu: str | None, gpus: int | None) -> list[dict[str, Any]]:
    """Returns the verdicts on one log as values, for the projector's entry point. Raises :class:`InputError`."""
    every, problems = judged([log], read_context(config, gpu, gpus))
    raise_all(problems)
    return values(every)


def _judged(run: MeasuredRun, timers: Mapping[str, float], row: RowReport) -> RunVerdict:
    if run.problem or run.measured.step_seconds is None:
        unknown = (text for text in row.refused if text.startswith("unknown "))
        missing = "; ".join((f"say {'; '.join(row.flagged)}", *unknown)) if row.missing else ""
        return RunVerdict(name=run.id, run=run, refused=missing or run.problem or "it has no step time")
    try:
        made = Ours("simulate").projection(run)
    except (InputError, Unsupported, NoMeasurement) as error:
        return RunVerdict(name=run.id, run=run, refused=str(error).replace("\n", "; "))
    known, cluster = Knowledge(), cluster_of(run.cluster, run.gpu, run.gpus_per_node)
    texts = (*run.assumed, *made.assumed)
    facts = facts_of(
        made.resolved.workload, cluster, made.step_seconds, made.breakdown, texts, known.law, unread=run.unread
    )
    found = known.of(facts)
    gap = math.log(run.measured.step_seconds / found.middle)
    # Where normal effects add up, the expected part of each in the sum is its share of the variance.
    causes = {name: math.exp(gap * (width / found.half_width) ** 2) for name, width in found.parts.items()}
    spans = _spans(made.breakdown, found.middle / made.step_seconds, timers)
    return RunVerdict(name=run.id, run=run, made=made, found=found, causes=causes, spans=spans, doubts=row.doubts)


def _spans(breakdown: Mapping[str, float], scale: float, timers: Mapping[str, float]) -> tuple[Span, ...]:
    """Returns the spans whose first timer the log has; ``scale``: expected over projected seconds."""
    return tuple(
        Span(
            name=name,
            expected=scale * math.fsum(breakdown[part] for part in parts),
            measured=max(sum(timers.get(t, 0.0) for t in added) - sum(timers.get(t, 0.0) for t in off), 0.0),
        )
        for name, parts, added, off in _SPANS
        if added[0] in timers
    )
