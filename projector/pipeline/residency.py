"""What is alive on a rank at each of its actions, for the memory model: a prefix sum along the schedule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from projector.errors import InputError, Problem
from projector.pipeline.types import KINDS, Compiled, Indices

__all__ = ["InFlight", "in_flight", "peak", "resident"]

Floats = NDArray[np.float64]
F, B, W = range(len(KINDS))


@dataclass(frozen=True, eq=False)
class InFlight:
    """The actions of one rank in time: ``stage``, ``kind`` (index into ``KINDS``), ``microbatch`` and ``sign`` ``[k]``.

    ``sign``: +1 where activations of a chunk appear (F), −1 where the last of them go (B, or W when backward is split),
    else 0. ``alive`` ``[k]``: chunks alive while the action runs (before what it releases is gone).
    """

    stage: Indices
    kind: Indices
    microbatch: Indices
    sign: Indices
    alive: Indices


def in_flight(compiled: Compiled) -> tuple[InFlight, ...]:
    """For each rank, the chunks that its actions bring to life and release."""
    out = []
    for rank in range(compiled.schedule.pp):
        own = _own(compiled, rank)
        kind = compiled.kind[own]
        last = W if compiled.schedule.split else B
        sign = (kind == F).astype(np.intp) - (kind == last)
        after = np.cumsum(sign)
        alive = np.maximum(after, after - sign)
        out.append(InFlight(compiled.stage[own], kind, compiled.microbatch[own], sign, alive))
    return tuple(out)


def resident(compiled: Compiled, delta_forward: ArrayLike, released_by_input: ArrayLike = 0.0) -> Floats:
    """``[…, actions]`` in ``by_rank`` order: bytes kept on the rank *after* each of its actions.

    ``delta_forward`` ``[…, stages]``: bytes that a forward keeps. ``released_by_input`` ``[…, stages]`` or scalar: how
    many of them a split B releases (negative: it keeps output gradients for W); the rest goes at W. Without split all
    goes at B.
    """
    kept = _per_stage("delta_forward", delta_forward, compiled)
    early = _per_stage("released_by_input", released_by_input, compiled)
    return _levels_of(compiled, kept, early)[1]


def peak(
    compiled: Compiled,
    delta_forward: ArrayLike,
    transient_forward: ArrayLike = 0.0,
    transient_backward: ArrayLike = 0.0,
    released_by_input: ArrayLike = 0.0,
    transient_weight: ArrayLike = 0.0,
) -> Floats:
    """``[…, pp]``: the most bytes alive on each rank at once.

    All arguments are bytes per virtual stage ``[…, stages]`` (or scalars). While a forward runs, what it keeps and its
    transient are alive beside what earlier actions keep; while a backward runs, its own activations are still there
    beside its transient. See :func:`resident` for ``released_by_input``. Raises :class:`InputError` on a wrong shape.
    """
    kept = _per_stage("delta_forward", delta_forward, compiled)
    early = _per_stage("released_by_input", released_by_input, compiled)
    before, after = _levels_of(compiled, kept, early)
    own, stage = compiled.kind[compiled.by_rank], compiled.stage[compiled.by_rank]
    values = (transient_forward, transient_backward, transient_weight)
    keys = ("transient_forward", "transient_backward", "transient_weight")
    transients = [_per_stage(key, value, compiled) for key, value in zip(keys, values, strict=True)]
    extra = np.select([own == code for code in (F, B, W)], [part[..., stage] for part in transients])
    top = np.maximum(before, after) + extra
    return np.asarray(np.maximum.reduceat(top, compiled.rank_starts, axis=-1))


def _levels_of(compiled: Compiled, kept: Floats, early: Floats) -> tuple[Floats, Floats]:
    """Bytes before and after each action, in ``by_rank`` order."""
    kind, stage = compiled.kind[compiled.by_rank], compiled.stage[compiled.by_rank]
    if compiled.schedule.split:
        change = np.select(
            [kind == F, kind == B, kind == W],
            [kept[..., stage], -early[..., stage], (early - kept)[..., stage]],
        )
    else:
        change = np.where(kind == F, kept[..., stage], -kept[..., stage])
    running = np.cumsum(change, axis=-1)
    starts = compiled.rank_starts
    before_rank = running[..., starts] - change[..., starts]
    lengths = np.diff(np.append(starts, compiled.size))
    after = running - np.repeat(before_rank, lengths, axis=-1)
    return after - change, after


def _own(compiled: Compiled, rank: int) -> Indices:
    bounds = np.append(compiled.rank_starts, compiled.size)
    return compiled.by_rank[bounds[rank] : bounds[rank + 1]]


def _per_stage(key: str, value: ArrayLike, compiled: Compiled) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim == 0:
        return np.full(compiled.stages, float(array))
    if array.shape[-1] != compiled.stages:
        raise InputError([Problem("pipeline", key, array.shape, f"a scalar or shape [..., {compiled.stages}]")])
    return array
