"""The peak of the fullest rank alone, which a search asks of thousands of configurations."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from projector.errors import Refusal
from projector.frameworks.columns import Runs, split_by_label
from projector.hardware.types import Gpu
from projector.memory.columns import lay_out
from projector.memory.holding import Sizes, tuned
from projector.memory.verdict import need
from projector.pipeline import InFlight, Schedule, Situations, situations
from projector.size import Floats, Rows, column, rows

_WIDE = 256  # runs on one schedule together


class Needs(NamedTuple):
    """Bytes of every run ``[runs]``: allocated on its fullest rank, required for that, and usable. NaN where a run
    could not be laid out. Where the order is made for times it is not known before: 0 allocated, and the need of the
    least of any order."""

    allocated: Floats
    required: Floats
    usable: Floats


def fullest(
    runs: Runs, gpu: Gpu, schedule: Schedule | None = None, *, tensors: bool = True
) -> tuple[Needs, dict[int, Refusal]]:
    """Returns what all runs need in the order of their schedule for equal times, or of ``schedule``; and why some
    cannot be laid out. Without ``tensors``: what they need at least, in whatever order, for their weights alone."""
    held, flights, refused = lay_out(runs, gpu, tensors=tensors)
    allocated, found = np.full(len(runs), np.nan), Needs(*np.full((3, len(runs)), np.nan))
    unknown = np.array([not tensors or (schedule is None and tuned(one)) for one in runs.ones], np.bool_)[runs.group]
    order = np.where(unknown, -1, flights.of)
    together: dict[int, list[tuple[Rows, Sizes]]] = {}
    for each in held:
        for part in split_by_label(np.arange(len(each.rows)), order[each.rows]):
            those = each.rows[part]
            together.setdefault(int(order[those[0]]), []).append((those, Sizes(*[of[part] for of in each.held])))
    for those, sizes in together.pop(-1, []):
        allocated[those] = _least(sizes)
    for flight, parts in together.items():
        alive = flights.alive[flight] if schedule is None else situations(schedule)
        whole = np.concatenate([those for those, _ in parts])
        sizes = Sizes(*map(np.concatenate, zip(*[own for _, own in parts], strict=True)))
        for first in range(0, len(whole), _WIDE):
            now = slice(first, first + _WIDE)
            allocated[whole[now]] = _peaks(Sizes(*[of[now] for of in sizes]), alive)
    for each in held:
        own, number = allocated[each.rows], len(each.rows)
        required, _, usable = need(each.run, column(own), gpu, column(each.held.outside))
        found.allocated[each.rows] = own
        found.required[each.rows], found.usable[each.rows] = rows(required, number), rows(usable, number)
    found.allocated[unknown & ~np.isnan(allocated)] = 0.0
    return found, refused


def _peaks(sizes: Sizes, flight: InFlight) -> Floats:
    """Returns ``[runs]`` bytes of the fullest ranks of runs that work in the same order."""
    static, step, construction = np.moveaxis(sizes.fixed, -1, 0)
    peaks = _everywhere(flight).peaks(sizes.chunks)
    return np.asarray(np.maximum(static + np.maximum(peaks, step), construction).max(axis=1))


def _least(sizes: Sizes) -> Floats:
    """Returns ``[runs]`` bytes of the fullest ranks with one micro-batch alive, the least of any order."""
    static, step, construction = np.moveaxis(sizes.fixed, -1, 0)
    forward = sizes.chunks[..., 2].max(axis=-1)
    return np.asarray(np.maximum(static + np.maximum(step, forward), construction).max(axis=1))


@lru_cache(maxsize=1024)
def _everywhere(flight: InFlight) -> _Everywhere:
    """Caches the situations of an order: a schedule has hundreds, of which a few can be the costliest."""
    return _Everywhere(flight)


class _Everywhere:
    """The situations of all ranks that may be the costliest, one after the other."""

    def __init__(self, played: InFlight) -> None:
        kept = [_undominated(met) for met in played.ranks]
        counts = [len(rows) for rows in kept]
        self._starts = np.cumsum([0, *counts[:-1]])
        self._rank = np.repeat(np.arange(len(counts)), counts)
        self._forward, self._chunk, self._alive, self._pending = (
            np.concatenate([getattr(met, name)[rows] for met, rows in zip(played.ranks, kept, strict=True)])
            for name in ("forward", "chunk", "alive", "pending")
        )

    def peaks(self, each: Floats) -> Floats:
        """Returns ``[runs, pp]`` bytes at the costliest situation of each rank. ``each`` ``[runs, pp, chunks, 4]``: see
        :class:`projector.memory.holding.Sizes`."""
        total = each[:, self._rank, self._chunk, np.where(self._forward, 2, 3)]
        total += (self._alive * each[..., 0][:, self._rank]).sum(axis=2)
        if self._pending.any():
            total += (self._pending * each[..., 1][:, self._rank]).sum(axis=2)
        return np.asarray(np.maximum.reduceat(total, self._starts, axis=1))


def _undominated(met: Situations) -> NDArray[np.intp]:
    """Returns the rows of situations in which more is alive than in any other at the same action on the same chunk."""
    found: list[int] = []
    for key in sorted(set(zip(met.forward.tolist(), met.chunk.tolist(), strict=True))):
        rows = np.flatnonzero((met.forward == key[0]) & (met.chunk == key[1]))
        counts = np.concatenate([met.alive[rows], met.pending[rows]], axis=1)
        covered = (counts[:, None] <= counts[None]).all(axis=2)  # distinct rows, so none covers another that covers it
        found += rows[covered.sum(axis=1) == 1].tolist()
    return np.array(sorted(found), np.intp)
