"""When parameters arrive and gradients are reduced: what a rank does with weights around its pipeline.

A step is counted from one barrier to the next: the norm of all gradients, which every rank waits for before it steps
its optimizer (Megatron-LM core/optimizer/optimizer.py ``get_grad_norm``; torch ``clip_grad_norm_``). Where every step
is logged a second barrier follows the optimizer (Megatron-LM training.py: ``interval-time`` is read with
``barrier=True``); without it a rank far from the first stage runs its optimizer while the first activations are still
on their way. Parameters gathered beside compute are on their way after that. Gradients of a virtual stage may be
reduced once its last backward has produced them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from projector.dataclass import dataclass
from projector.pipeline.timeline import Timeline
from projector.pipeline.trace import Span
from projector.size import Floats


@dataclass(frozen=True, eq=False)
class Exchange:
    """Seconds of exchange by virtual stage (``reduce``, ``gather`` ``[…, stages]``), by rank (``optimizer`` ``[…, pp]``).

    ``overlap_reduce``, ``overlap_gather``: beside the last backward and the first forward of each stage, bucket by
    bucket. ``last``, ``first`` ``[…, stages]``: share of a reduction that is its last bucket, complete with the stage's
    last backward, and of a gather that is its first, which the stage's first forward waits for. ``contention``: seconds
    that compute loses for each second of communication beside it. ``idle`` ``[…, 2, stages]``: seconds of a forward (of a
    backward) in which the device waits for its host, which make up for as many lost. ``tied`` ``[…, pp]``: seconds of
    summing the gradients of a tensor that several ranks hold, once all of these have reduced theirs. ``logged``: ranks
    wait for each other after the optimizer. A leading axis is a batch of runs on one schedule.
    """

    reduce: Floats
    gather: Floats
    optimizer: Floats
    overlap_reduce: bool
    overlap_gather: bool
    last: Floats
    first: Floats
    contention: float
    idle: Floats
    tied: Floats = field(default_factory=lambda: np.zeros(1))
    logged: bool = True


@dataclass(frozen=True, eq=False)
class Arrival:
    """When parameters are there. ``release`` ``[…, stages]``: seconds after ``base`` before which no forward of a stage
    starts; ``base`` ``[…]``: seconds after the barrier at which the first rank is ready; ``gather`` ``[…, pp]``:
    exposed parameter gather."""

    release: Floats
    base: Floats
    gather: Floats


@dataclass(frozen=True, eq=False)
class Finish:
    """When gradients are reduced, on the clock of the timeline. ``ends`` ``[…, pp]``: all gradients of each rank;
    ``reduced`` ``[…, pp, chunks]``: those of each of its chunks."""

    ends: Floats
    reduced: Floats


def arrival(exchange: Exchange, placement: Sequence[Sequence[int]], forward: Floats) -> Arrival:
    """Returns when the parameters of every virtual stage are there, from its forward seconds ``[…, stages]``."""
    stages = np.asarray(placement, np.intp)
    gather = exchange.gather[..., stages]
    whole = gather.sum(axis=-1)
    first = exchange.optimizer if exchange.overlap_gather else exchange.optimizer + whole
    if exchange.logged:
        first = np.broadcast_to(first.max(axis=-1, keepdims=True), first.shape)
    ready, shown, when = (np.zeros(np.broadcast_shapes(forward.shape, exchange.gather.shape)), whole, first[..., None])
    if exchange.overlap_gather:
        idle = exchange.idle[..., 0, stages]
        exposed_gather = exposed(gather, forward[..., stages], exchange.first[..., stages], exchange.contention, idle)
        when = when + (np.cumsum(gather, axis=-1) - gather) + exposed_gather
        shown = exposed_gather[..., 0]
    np.maximum.at(ready, (..., stages), when)  # type: ignore[arg-type]  # a stage may stand on several ranks
    base = ready.min(axis=-1)
    return Arrival(ready - base[..., None], base, shown)


def finish(exchange: Exchange, timeline: Timeline) -> Finish:
    """Returns when every rank has reduced its gradients: after its last action, or stage by stage."""
    schedule, stages = timeline.compiled.schedule, timeline.compiled.stages
    placement = np.asarray(schedule.placement, np.intp)
    last, complete = np.asarray(timeline.rank_end, np.float64), timeline.last_backward[..., placement]
    kind = 2 if schedule.split else 1
    lasts = np.broadcast_to(timeline.durations[..., kind * stages + placement], complete.shape)
    order = np.argsort(complete, axis=-1, kind="stable")
    seconds, share, complete, lasts, idle = (
        np.take_along_axis(np.broadcast_to(part, complete.shape), order, -1)
        for part in (
            *(exchange.reduce[..., placement], exchange.last[..., placement], complete, lasts),
            exchange.idle[..., 1, placement],
        )
    )
    reduced = np.empty_like(complete)
    lost, now = np.zeros_like(last), np.zeros_like(last) if exchange.overlap_reduce else last
    for position in range(placement.shape[1]):
        each, whole, loss = seconds[..., position], complete[..., position], exchange.contention
        begin, rest = now, share[..., position] * each
        if exchange.overlap_reduce:
            begin = np.maximum(now, whole - lasts[..., position])
            window = np.maximum(0.0, last - begin - idle[..., position]) / (1.0 - loss)
            behind = np.clip(last - np.maximum(whole, begin + each - rest), 0.0, rest)
            hidden = loss * np.minimum(each - rest + behind, window)
            lost = lost + np.maximum(0.0, hidden - idle[..., position])
        now = np.maximum(begin + each, whole + lost + rest)
        reduced[..., position] = now
    ends = np.maximum(now, last + lost)
    by_chunk = np.empty_like(reduced)
    np.put_along_axis(by_chunk, order, reduced, -1)
    # a sum between ranks that hold the same tensor begins when all of them are there
    all_there = np.where(exchange.tied > 0, ends, 0.0).max(axis=-1, keepdims=True)
    return Finish(np.asarray(np.where(exchange.tied > 0, all_there + exchange.tied, ends)), by_chunk)


def exposed(
    seconds: Floats | float,
    window: Floats | float,
    bucket: Floats | float,
    contention: float,
    idle: Floats | float = 0.0,
) -> Floats:
    """Returns the seconds that a communication adds to ``window`` seconds of work beside it, in which the device is
    ``idle`` for some: the part that is longer than the work, and what the work loses by it beyond its idle time."""
    stretched = (window - idle) / (1.0 - contention)
    hidden = np.minimum(np.multiply(seconds, 1.0 - bucket), np.maximum(window, stretched))
    return np.asarray(seconds - hidden + np.maximum(0.0, contention * np.minimum(hidden, stretched) - idle))


def spans(exchange: Exchange, start: Arrival, end: Finish, placement: Sequence[Sequence[int]]) -> tuple[Span, ...]:
    """Returns optimizer, parameter gather and gradient reduction of every rank of one run, on its timeline's clock."""
    shown, base, common = list[Span](), float(start.base), float(exchange.optimizer.max())
    for rank, stages in enumerate(placement):
        now = float(exchange.optimizer[rank])
        shown.append(Span(rank, "optimizer", "optimizer", -base, now - base))
        now = max(common, now) if exchange.overlap_gather and exchange.logged else now
        for stage in stages:
            begun, now = now, now + float(exchange.gather[stage])
            shown.append(Span(rank, "data-parallel", f"gather parameters of stage {stage}", begun - base, now - base))
    for rank, stages in enumerate(placement):
        for now, stage in sorted(zip(end.reduced[rank].tolist(), stages, strict=True)):
            name = f"reduce gradients of stage {stage}"
            shown.append(Span(rank, "data-parallel", name, now - float(exchange.reduce[stage]), now))
    for rank, (last, seconds) in enumerate(np.broadcast(end.ends, exchange.tied)):
        shown.append(Span(rank, "data-parallel", "sum gradients of shared tensors", float(last - seconds), float(last)))
    return tuple(span for span in shown if span.end > span.start)
