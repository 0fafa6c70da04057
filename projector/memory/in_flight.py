"""The distinct situations a rank meets while it runs its schedule: how many micro-batches of each chunk are alive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from projector.pipeline import build
from projector.pipeline.types import Action

__all__ = ["Replay", "Situations", "replay", "shortened"]

# Schedules that run every forward before the first backward: all micro-batches are alive, so none may be left out.
_ALL_FORWARD_FIRST = frozenset({"gpipe", "looped_bfs"})


@dataclass(frozen=True, eq=False)
class Situations:
    """Distinct moments of one rank, ``k`` of them, just before an action (its own forward not yet counted).

    ``forward`` ``[k]``: the action is a forward (else a backward); ``chunk`` ``[k]``; ``alive`` ``[k, vpp]``:
    micro-batches whose forward is done and backward is not; ``pending`` ``[k, vpp]``: whose weight gradient is owed.
    """

    forward: NDArray[np.bool_]
    chunk: NDArray[np.intp]
    alive: NDArray[np.float64]
    pending: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Replay:
    """A schedule as the memory model needs it. ``placement[rank][chunk]``: the virtual stage that the chunk is."""

    placement: tuple[tuple[int, ...], ...]
    ranks: tuple[Situations, ...]


@lru_cache(maxsize=1024)
def replay(schedule: str, pp: int, vpp: int, microbatches: int, group: int | None, extra: int) -> Replay:
    """The distinct situations of every pipeline rank, from the order in which it works.

    The steady state repeats, so micro-batches beyond a few rounds add no new situation and are left out.
    Raises :class:`projector.errors.InputError` as :func:`projector.pipeline.build` does.
    """
    count = microbatches if schedule in _ALL_FORWARD_FIRST else shortened(microbatches, pp, group)
    if count < microbatches:
        return replay(schedule, pp, vpp, count, group, extra)
    built = build(schedule, pp, vpp, count, group, extra)
    return Replay(built.placement, tuple(_situations(order, vpp, built.split) for order in built.orders))


def shortened(microbatches: int, pp: int, group: int | None) -> int:
    """Micro-batches enough to reach the steady state, with the same remainder against the group size."""
    unit = max(1, group or pp)
    enough = unit * -(-4 * pp // unit)
    return microbatches if microbatches <= enough + unit else enough + microbatches % unit


def _situations(order: Sequence[Action], vpp: int, split: bool) -> Situations:
    alive, pending = [0] * vpp, [0] * vpp
    seen: dict[tuple[bool, int, tuple[int, ...], tuple[int, ...]], None] = {}
    for kind, chunk, _ in order:
        if kind == "W":
            pending[chunk] -= 1
            continue
        seen[kind == "F", chunk, tuple(alive), tuple(pending)] = None
        if kind == "F":
            alive[chunk] += 1
        else:
            alive[chunk] -= 1
            pending[chunk] += split
    rows = list(seen)
    return Situations(
        forward=np.array([row[0] for row in rows], dtype=np.bool_),
        chunk=np.array([row[1] for row in rows], dtype=np.intp),
        alive=np.array([row[2] for row in rows], dtype=np.float64),
        pending=np.array([row[3] for row in rows], dtype=np.float64),
    )
