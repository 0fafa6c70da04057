"""Replays what is alive on a rank before each of its actions: one walk along its order gives every figure of memory.

Counts of micro-batches come first; bytes are counts times the bytes of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache, partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.pipeline.schedules import build, generator
from projector.pipeline.types import KINDS, Compiled, Schedule
from projector.size import Floats

F, B, W = range(len(KINDS))


@dataclass(frozen=True, eq=False)
class Replay:
    """Every action of ``schedule`` in the order of ranks and time, with what is alive before it.

    ``alive`` ``[actions, chunks]``: micro-batches of each chunk of the rank whose forward is done and backward is not;
    ``pending`` ``[actions, chunks]``: those whose backward is done and weight gradient is not.
    """

    schedule: Schedule
    alive: Floats
    pending: Floats

    def kept(self, saved: Floats, owed: Floats) -> tuple[Floats, Floats]:
        """Returns ``[…, actions]``: bytes before and after each action. ``saved``, ``owed`` ``[…, stages]``: bytes of a
        micro-batch from its forward to its backward, and from there to its weight gradient."""
        starts = self.schedule.flat.starts
        before = np.empty((*np.broadcast_shapes(saved.shape[:-1], owed.shape[:-1]), len(self.alive)))
        for rank, stages in enumerate(self.schedule.placement):
            rows = slice(starts[rank], starts[rank + 1])
            before[..., rows] = saved[..., stages] @ self.alive[rows].T
            if self.schedule.split:
                before[..., rows] += owed[..., stages] @ self.pending[rows].T
        after = np.zeros_like(before)
        after[..., :-1] = before[..., 1:]  # a rank ends as it begins, with nothing
        return before, after


def replay(schedule: Schedule) -> Replay:
    """Returns which micro-batches the orders of ``schedule`` keep alive."""
    kind, here = schedule.flat.kind[:, None], schedule.flat.chunk[:, None] == np.arange(schedule.chunks)
    done = [np.cumsum(here & (kind == code), axis=0) - (here & (kind == code)) for code in (F, B, W)]
    pending = (done[B] - done[W]) if schedule.split else np.zeros_like(done[B])
    return Replay(schedule, (done[F] - done[B]).astype(np.float64), pending.astype(np.float64))


def resident(compiled: Compiled, delta_forward: ArrayLike, released_by_input: ArrayLike = 0.0) -> Floats:
    """Returns ``[…, actions]`` in ``by_rank`` order: bytes kept on the rank *after* each of its actions.

    ``delta_forward`` ``[…, stages]``: bytes that a forward keeps. ``released_by_input`` ``[…, stages]`` or scalar: how
    many of them a split B releases (negative: it keeps output gradients for W); W releases the rest. Without split B
    releases all.
    """
    return _kept(compiled, delta_forward, released_by_input)[1]


def peak(compiled: Compiled, delta_forward: ArrayLike, released_by_input: ArrayLike = 0.0) -> Floats:
    """Returns ``[…, pp]``: the most bytes alive on each rank at once; parameters as of :func:`resident`. While a
    backward runs, what its forward kept is still there. Raises :class:`InputError` on a wrong shape."""
    most = np.maximum(*_kept(compiled, delta_forward, released_by_input))
    return np.asarray(np.maximum.reduceat(most, compiled.rank_starts, axis=-1))


@dataclass(frozen=True, eq=False)
class Situations:
    """Distinct moments of one rank, ``k`` of them, just before an action (its own forward not yet counted).

    ``forward`` ``[k]``: the action is a forward (else a backward); ``chunk`` ``[k]``; ``alive``, ``pending``
    ``[k, chunks]``: as in :class:`Replay`.
    """

    forward: NDArray[np.bool_]
    chunk: NDArray[np.intp]
    alive: Floats
    pending: Floats

    def bytes(self, sizes: Floats) -> tuple[Floats, Floats]:
        """Returns ``[k]``: bytes that others keep in each moment, and all bytes. ``sizes`` ``[chunks, 4]``: of a
        micro-batch in each chunk what is saved and what is pending, and what it takes at the costliest moment of its
        forward, and of its backward beside what is saved."""
        saved, pending, forward, backward = sizes.T
        base = self.alive @ saved + self.pending @ pending
        return base, base + np.where(self.forward, forward[self.chunk], backward[self.chunk])


@dataclass(frozen=True, eq=False)
class InFlight:
    """What is alive on the ranks of a schedule. ``placement[rank][chunk]``: its virtual stage; ``order``: makes the
    schedule."""

    placement: tuple[tuple[int, ...], ...]
    order: Callable[[], Schedule]

    @cached_property
    def ranks(self) -> tuple[Situations, ...]:
        """Returns the distinct situations of every rank, found on request: many runs do not fit with weights alone."""
        return _situations(replay(self.order()))


@lru_cache(maxsize=1024)
def in_flight(name: str, pp: int, vpp: int, microbatches: int, group: int | None, extra_warmup: int) -> InFlight:
    """Returns the distinct situations of every pipeline rank, from the order in which it works.

    The steady state repeats, so micro-batches beyond a few rounds add no new situation and are left out. Raises
    :class:`projector.errors.InputError` as :func:`projector.pipeline.build` does.
    """
    count = microbatches if generator(name).forwards_first else shortened(microbatches, pp, group)
    if count < microbatches:
        return in_flight(name, pp, vpp, count, group, extra_warmup)
    order = partial(build, name, pp, vpp, count, group, extra_warmup)
    return InFlight(order().placement, order)


def situations(schedule: Schedule) -> InFlight:
    """Returns the distinct situations of every rank of ``schedule``."""
    return InFlight(schedule.placement, lambda: schedule)


def shortened(microbatches: int, pp: int, group: int | None) -> int:
    """Returns micro-batches enough to reach the steady state, with the same remainder against the group size."""
    unit = max(1, group or pp)
    enough = unit * max(3, -(-4 * pp // unit))  # chunks of one group meet those of the one before and after it
    return microbatches if microbatches <= enough + unit else enough + microbatches % unit


def _situations(replayed: Replay) -> tuple[Situations, ...]:
    flat, chunks = replayed.schedule.flat, replayed.schedule.chunks
    columns = flat.rank[:, None], (flat.kind == F)[:, None], flat.chunk[:, None], replayed.alive, replayed.pending
    table = np.concatenate(columns, axis=1)[flat.kind != W]
    width, text = table.shape[1] * table.itemsize, table.tobytes()  # rows as bytes: faster to compare than numbers
    first = {text[row * width : (row + 1) * width]: row for row in range(len(table) - 1, -1, -1)}
    distinct = table[sorted(first.values())]
    starts = np.searchsorted(distinct[:, 0], np.arange(1, replayed.schedule.pp))
    return tuple(
        Situations(
            rows[:, 1].astype(np.bool_), rows[:, 2].astype(np.intp), rows[:, 3 : 3 + chunks], rows[:, 3 + chunks :]
        )
        for rows in np.split(distinct, starts)
    )


def _kept(compiled: Compiled, delta_forward: ArrayLike, released_by_input: ArrayLike) -> tuple[Floats, Floats]:
    """Returns :meth:`Replay.kept` of bytes by stage, or of one number for all of them."""
    parts = []
    for key, value in (("delta_forward", delta_forward), ("released_by_input", released_by_input)):
        array = np.asarray(value, dtype=np.float64)
        if array.ndim and array.shape[-1] != compiled.stages:
            raise InputError([Problem("pipeline", key, array.shape, f"a scalar or shape [..., {compiled.stages}]")])
        parts.append(array if array.ndim else np.full(compiled.stages, float(array)))
    saved, early = parts
    return replay(compiled.schedule).kept(saved, saved - early)
