"""Evaluates how long a compiled schedule takes: a max-plus recurrence over its topological order.

    start(a) = max(end(before a on its rank) + blocked(a), end(source of a's input) + transfer(a), release(a))
    end(a)   = start(a) + duration(a)

``transfer(a)`` is the time of the message that ``a`` receives from another rank (0 when it stays on the rank).
``blocked(a)`` is 0 when point-to-point traffic overlaps with compute. When it does not, the rank posts the send of its
last output and the receive of the next input as one batch and waits for both (Megatron-LM without ``overlap_p2p_comm``:
``batch_isend_irecv`` waited at once), so ``blocked(a) = max(message sent by the action before, transfer(a))``: the two
directions share the wait, and the transfer starts when the receiver is free *and* the sender is done.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from projector.errors import Problem, raise_all
from projector.pipeline.timeline import Timeline, paired_durations
from projector.pipeline.types import Compiled, Indices
from projector.size import Floats

BLOCK = 256  # duration vectors evaluated together: wide enough for NumPy, narrow enough for a core's L2 cache


def evaluate(
    compiled: Compiled,
    forward: ArrayLike,
    backward_input: ArrayLike,
    backward_weight: ArrayLike,
    p2p: ArrayLike = 0.0,
    overlap_p2p: bool = False,
    overlap_warmup_flush: bool = True,
    release: ArrayLike | None = None,
    hidden: tuple[ArrayLike, ArrayLike] | None = None,
) -> Timeline:
    """Returns when every action starts and ends.

    ``forward``, ``backward_input``, ``backward_weight``: seconds per virtual stage, ``[pp·vpp]`` or a batch
    ``[batch, pp·vpp]``; an unsplit backward takes the sum of the two. ``p2p``: seconds of one message, a scalar, one
    value per boundary between virtual stages ``v`` and ``v + 1`` ``[pp·vpp − 1]`` (same both ways), or a batch of
    those; boundaries inside a rank cost nothing. ``overlap_p2p``: messages run beside compute;
    ``overlap_warmup_flush=False`` keeps them blocking before the first backward and after the last forward of a rank
    (Megatron-LM's default with ``overlap_p2p_comm``). ``release`` ``[pp·vpp]``: seconds before which no forward of a
    virtual stage may start (exposed parameter gather). ``hidden``: seconds that the forward and the backward of a
    virtual stage ``[pp·vpp]`` (or a batch of those) each save when they run as one of a pair (all-to-all traffic beside
    the other's compute); for schedules compiled ``paired``.

    Raises :class:`InputError` when a shape is wrong, or a value is negative or not finite.
    """
    table, messages, floor = _inputs(compiled, forward, backward_input, backward_weight, p2p, release)
    transfer, blocked = _latencies(compiled, messages, overlap_p2p, overlap_warmup_flush)
    saved = _savings(compiled, hidden)
    batch = max(table.shape[0], messages.shape[0], floor.shape[0])
    given = (forward, backward_input, backward_weight, p2p, 0.0 if release is None else release)
    if batch == 1 and not any(np.ndim(value) == 2 for value in given):
        waits, saved = (transfer[:, 0], blocked[:, 0]), None if saved is None else saved[0]
        seconds = paired_durations(compiled, table[0], saved)
        end = _single(compiled, seconds, *waits, floor[0])
        return Timeline(compiled, table[0], *waits, floor[0], end, saved)
    end = _batched(compiled, batch, table, transfer, blocked, floor, saved)
    return Timeline(compiled, table, transfer.T, blocked.T, floor, end, saved)


def _savings(compiled: Compiled, hidden: tuple[ArrayLike, ArrayLike] | None) -> Floats | None:
    """Returns ``[batch, actions]``: the seconds that each action saves beside its partner."""
    if hidden is None:
        return None
    problems: list[Problem] = []
    parts = [
        _checked(key, part, compiled.stages, problems)
        for key, part in zip(("hidden forward", "hidden backward"), hidden, strict=True)
    ]
    raise_all(problems)
    return np.asarray(np.select([compiled.kind == 0, compiled.kind == 1], [part[:, compiled.stage] for part in parts]))


def _single(compiled: Compiled, seconds: Floats, transfer: Floats, blocked: Floats, floor: Floats) -> Floats:
    """Returns ``[actions]`` ends by a plain loop: faster than NumPy for one vector of durations."""
    before, source = compiled.predecessor_lists
    duration = seconds.tolist()
    end = [0.0]
    done = end.append
    columns = (before, source, transfer.tolist(), blocked.tolist(), duration)
    if not floor.any() and not len(compiled.pairs[0]):  # the usual step: a third less time than with what it lacks
        for mine, other, wait, block, lasts in zip(*columns, strict=True):
            start, ready = end[mine] + block, end[other] + wait
            done((start if start > ready else ready) + lasts)
        return np.asarray(end[1:])
    least = _floors(compiled, floor[None])[:, 0].tolist()
    if len(compiled.pairs[0]):
        second = (column.tolist() for column in _second_inputs(compiled, transfer))
        for mine, other, wait, block, lasts, at_least, beside, hop in zip(*columns, least, *second, strict=True):
            done(max(end[mine] + block, end[other] + wait, end[beside] + hop, at_least) + lasts)
        return np.asarray(end[1:])
    for mine, other, wait, block, lasts, at_least in zip(*columns, least, strict=True):
        start, ready = end[mine] + block, end[other] + wait
        if ready > start:
            start = ready
        done((start if start > at_least else at_least) + lasts)
    return np.asarray(end[1:])


def _second_inputs(compiled: Compiled, transfer: Floats) -> tuple[Indices, Floats]:
    """Returns for a forward that runs beside a backward the source of that backward (shifted by one, 0: none), and the
    message that brings its input, ``[actions, …]``."""
    forward, backward = compiled.pairs
    source = np.zeros(compiled.size, np.intp)
    source[forward] = compiled.source[backward] + 1
    wait = np.zeros_like(transfer)
    wait[forward] = transfer[backward]
    return source, wait


def _batched(
    compiled: Compiled,
    batch: int,
    table: Floats,
    transfer: Floats,
    blocked: Floats,
    floor: Floats,
    saved: Floats | None,
) -> Floats:
    """Returns ``[batch, actions]`` ends (a view of ``[actions, batch]`` memory), in blocks that fit the cache."""
    ends = []
    for first in range(0, batch, BLOCK):
        rows = slice(first, min(first + BLOCK, batch))
        lasts, least = (part if part.shape[0] == 1 else part[rows] for part in (table, floor))
        waits, blocks = (part if part.shape[1] == 1 else part[:, rows] for part in (transfer, blocked))
        beside = saved if saved is None or saved.shape[0] == 1 else saved[rows]
        # an array of its own: take() on a view of a larger array would copy all of that array
        end = np.zeros((compiled.size + 1, rows.stop - rows.start))
        _block(compiled, end, lasts, waits, blocks, least, beside)
        ends.append(end)
    return (ends[0] if len(ends) == 1 else np.concatenate(ends, axis=1))[1:].T


def _block(
    compiled: Compiled,
    end: Floats,
    table: Floats,
    transfer: Floats,
    blocked: Floats,
    floor: Floats,
    saved: Floats | None,
) -> None:
    """Fills ``end`` ``[1 + actions, batch]`` (row 0: the start) level by level, from the ends and arrivals of inputs."""
    lasts = table.T.take(compiled.duration_index, axis=0)
    inputs = [(compiled.before + 1, blocked), (compiled.source + 1, transfer)]
    paired = bool(len(compiled.pairs[0]))
    if paired:
        lasts = paired_durations(compiled, table, saved).T
        inputs.append(_second_inputs(compiled, transfer))
    shape, many = (compiled.size, end.shape[1]), len(inputs)
    order = compiled.level_by_level(many)
    source = np.concatenate([each for each, _ in inputs])[order]
    wait = np.concatenate([np.broadcast_to(each, shape) for _, each in inputs]).take(order, axis=0)
    bounds = compiled.levels.tolist()
    begun = compiled.begun if floor.any() else 0
    least = _floors(compiled, floor, begun)
    for low, high in pairwise(bounds):
        places, size = slice(many * low, many * high), high - low
        ready = end.take(source[places], axis=0)
        ready += wait[places]
        now = end[low + 1 : high + 1]
        np.maximum(ready[:size], ready[size : 2 * size], out=now)
        if paired:
            np.maximum(now, ready[2 * size :], out=now)
        if high <= begun:
            np.maximum(now, least[low:high], out=now)
        now += lasts[low:high]


def _latencies(
    compiled: Compiled, messages: Floats, overlap: bool, overlap_warmup_flush: bool
) -> tuple[Floats, Floats]:
    """Returns ``transfer`` and ``blocked`` ``[actions, batch]`` from ``messages`` ``[batch, boundaries]``."""
    padded = np.concatenate([messages.T, np.zeros((1, messages.shape[0]))])  # index −1: no message
    transfer = padded.take(compiled.boundary, axis=0)
    if (overlap and overlap_warmup_flush) or not messages.any():
        return transfer, np.zeros((compiled.size, 1))
    received, sent = compiled.posted
    blocked = np.maximum(padded.take(received, axis=0), padded.take(sent, axis=0))
    forward, backward = compiled.pairs
    if len(forward):  # a pair waits once, for the inputs of both
        blocked[forward] = np.maximum(blocked[forward], transfer[backward])
        blocked[backward] = 0.0
    if overlap:
        blocked[compiled.steady] = 0.0
    return transfer, blocked


def _floors(compiled: Compiled, floor: Floats, actions: int | None = None) -> Floats:
    """Returns ``[actions, batch]``: seconds before which the first ``actions`` do not start."""
    rows = slice(actions)
    return np.where(compiled.kind[rows, None] == 0, floor.T.take(compiled.stage[rows], axis=0), 0.0)


def _inputs(
    compiled: Compiled,
    forward: ArrayLike,
    inputs: ArrayLike,
    weights: ArrayLike,
    p2p: ArrayLike,
    release: ArrayLike | None,
) -> tuple[Floats, Floats, Floats]:
    stages, problems = compiled.stages, list[Problem]()
    F = _checked("forward", forward, stages, problems)
    B = _checked("backward_input", inputs, stages, problems)
    W = _checked("backward_weight", weights, stages, problems)
    messages = np.full((1, max(stages - 1, 0)), p2p) if np.ndim(p2p) == 0 else p2p
    messages = _checked("p2p", messages, stages - 1, problems)
    floor = np.zeros((1, stages)) if release is None else _checked("release", release, stages, problems)
    batches = {array.shape[0] for array in (F, B, W, messages, floor)} - {1}
    if len(batches) > 1:
        problems.append(Problem("pipeline", "batch", sorted(batches), "one batch size in all arguments"))
    raise_all(problems)
    if not compiled.schedule.split:
        B, W = B + W, np.zeros((1, stages))
    rows = max(F.shape[0], B.shape[0], W.shape[0])
    table = np.concatenate([np.broadcast_to(part, (rows, stages)) for part in (F, B, W)], axis=1)
    return table, messages, floor


def _checked(key: str, value: ArrayLike, width: int, problems: list[Problem]) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim not in (1, 2) or array.shape[-1] != width:
        problems.append(Problem("pipeline", key, array.shape, f"shape [{width}] or [batch, {width}]"))
        return np.zeros((1, width))
    if not np.isfinite(array).all() or (array < 0).any():
        problems.append(Problem("pipeline", key, array.tolist() if array.size < 65 else "array", "finite seconds >= 0"))
    return array if array.ndim == 2 else array[None, :]
