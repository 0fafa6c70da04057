"""What a rank does with weights and gradients around its pipeline: when parameters arrive, when gradients are reduced.

A step is counted from one barrier to the next: the norm of all gradients, which every rank waits for before it steps its
optimizer (Megatron-LM core/optimizer/optimizer.py ``get_grad_norm``; torch ``clip_grad_norm_``). Where every step is
logged a second barrier follows the optimizer (Megatron-LM training.py: ``interval-time`` is read with ``barrier=True``);
without it a rank far from the first stage runs its optimizer while the first activations are still on their way.
Parameters gathered beside compute are on their way after that. Gradients of a virtual stage may be reduced once its last
backward has produced them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from projector.pipeline.timeline import Timeline
from projector.pipeline.trace import Span

__all__ = ["Arrival", "Exchange", "Finish", "arrival", "exposed", "finish"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Exchange:
    """Seconds by virtual stage (``reduce``, ``gather`` ``[stages]``) and by rank (``optimizer`` ``[pp]``).

    ``overlap_reduce``, ``overlap_gather``: beside the last backward and the first forward of each stage, bucket by
    bucket. ``bucket``: share of a reduction that is its last bucket (of a gather: its first), never hidden.
    ``contention``: seconds that compute loses for each second of communication beside it. ``logged``: ranks wait for
    each other after the optimizer.
    """

    reduce: Floats
    gather: Floats
    optimizer: Floats
    overlap_reduce: bool
    overlap_gather: bool
    bucket: float
    contention: float
    logged: bool = True


@dataclass(frozen=True, eq=False)
class Arrival:
    """``release`` ``[stages]``: seconds after ``base`` before which no forward of a stage starts; ``base``: seconds after
    the barrier at which the first rank is ready; ``gather`` ``[pp]``: exposed parameter gather of each rank."""

    release: Floats
    base: float
    gather: Floats
    spans: tuple[Span, ...]


@dataclass(frozen=True, eq=False)
class Finish:
    """``ends`` ``[pp]``: when each rank has all its gradients reduced, on the clock of the timeline."""

    ends: Floats
    spans: tuple[Span, ...]


def arrival(exchange: Exchange, placement: Sequence[Sequence[int]], forward: Floats) -> Arrival:
    """When the parameters of every virtual stage are there, from its forward seconds ``[stages]``."""
    ready, shown, spans = np.zeros(len(forward)), np.zeros(len(placement)), list[Span]()
    whole = np.array([exchange.gather[list(own)].sum() for own in placement])
    own_ready = exchange.optimizer + (0.0 if exchange.overlap_gather else whole)
    common = float(own_ready.max()) if exchange.logged else 0.0
    for rank, own in enumerate(placement):
        now = float(exchange.optimizer[rank])
        spans.append(Span(rank, "optimizer", "optimizer", 0.0, now))
        first = max(common, float(own_ready[rank]))
        ready[list(own)] = first
        now = first if exchange.overlap_gather else now
        shown[rank] = 0.0 if exchange.overlap_gather else float(whole[rank])
        for number, stage in enumerate(own):
            seconds = float(exchange.gather[stage])
            if exchange.overlap_gather:
                ready[stage] = now + exposed(seconds, float(forward[stage]), exchange.bucket, exchange.contention)
                shown[rank] += ready[stage] - now if number == 0 else 0.0
            spans.append(Span(rank, "data-parallel", f"gather parameters of stage {stage}", now, now + seconds))
            now += seconds
    base = float(ready.min())
    return Arrival(ready - base, base, shown, _shifted(spans, -base))


def finish(exchange: Exchange, timeline: Timeline) -> Finish:
    """When every rank has reduced its gradients: after its last action, or stage by stage as they become complete."""
    schedule, spans = timeline.compiled.schedule, list[Span]()
    ends = np.array(timeline.rank_end, dtype=np.float64)
    complete = timeline.last_backward
    kind = 2 if schedule.split else 1
    lasts = timeline.durations[kind * timeline.compiled.stages :][: timeline.compiled.stages]
    for rank, own in enumerate(schedule.placement):
        now = 0.0 if exchange.overlap_reduce else float(ends[rank])
        hidden = 0.0
        for stage in sorted(own, key=lambda v: float(complete[v])):
            seconds = float(exchange.reduce[stage])
            begin = max(now, float(complete[stage] - lasts[stage])) if exchange.overlap_reduce else now
            now = max(begin + seconds, float(complete[stage]) + exchange.bucket * seconds)
            hidden += max(0.0, seconds - max(0.0, now - float(ends[rank]))) if exchange.overlap_reduce else 0.0
            if seconds > 0:
                spans.append(Span(rank, "data-parallel", f"reduce gradients of stage {stage}", now - seconds, now))
        ends[rank] = max(now, float(ends[rank])) + exchange.contention * hidden
    return Finish(ends, tuple(spans))


def exposed(seconds: float, window: float, bucket: float, contention: float) -> float:
    """What is left of a communication beside ``window`` seconds of compute, with the slow-down it causes there."""
    hidden = min(seconds * (1.0 - bucket), window)
    return seconds - hidden + contention * hidden


def _shifted(spans: Sequence[Span], by: float) -> tuple[Span, ...]:
    return tuple(Span(s.rank, s.track, s.name, s.start + by, s.end + by) for s in spans if s.end > s.start)
