"""The fullest rank and nothing else: what a search asks of thousands of configurations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from projector.frameworks.types import Resolved
from projector.hardware.types import Gpu
from projector.memory.columns import Laid, Refusal
from projector.memory.holding import tuned
from projector.memory.verdict import Need, need
from projector.pipeline import InFlight, Schedule, Situations, situations

Floats = NDArray[np.float64]
_WIDE = 256  # runs on one schedule together


def fullest(run: Laid, gpu: Gpu, schedule: Schedule) -> tuple[float, Need]:
    """Returns the allocated bytes of the fullest rank, and whether they fit: what :func:`plan` says of a run, in
    short."""
    return _together([run], gpu, situations(schedule))[0]


class Fullest(NamedTuple):
    """A run, the allocated bytes of its fullest rank, and what these need. An order that is made for its times is not known
    before: 0 bytes, and the need of the least of any order."""

    run: Resolved
    allocated: float
    need: Need


def fullest_of(runs: Sequence[Laid | Refusal], gpu: Gpu) -> list[Fullest | Refusal]:
    """Returns the same of many, each in the order of its schedule for equal times."""
    alike: dict[InFlight, list[int]] = {}
    found: dict[int, Fullest | Refusal] = {}
    for i, run in enumerate(runs):
        if not isinstance(run, Laid):
            found[i] = run
        elif tuned(run.resolved):
            found[i] = Fullest(run.resolved, 0.0, least(run, gpu))
        else:
            alike.setdefault(run.flight, []).append(i)
    for flight, rows in alike.items():
        for first in range(0, len(rows), _WIDE):
            now = rows[first : first + _WIDE]
            those = [run for i in now if isinstance(run := runs[i], Laid)]
            each = zip(those, _together(those, gpu, flight), strict=True)
            found |= zip(now, (Fullest(run.resolved, *peak) for run, peak in each), strict=True)
    return [found[i] for i in range(len(runs))]


def _together(runs: Sequence[Laid], gpu: Gpu, flight: InFlight) -> list[tuple[float, Need]]:
    """Runs whose ranks work in the same order."""
    each = np.stack([one.held.chunks for one in runs])
    static, step, construction = np.stack([one.held.fixed for one in runs]).transpose(2, 0, 1)
    peaks = _everywhere(flight).peaks(each)
    allocated = np.maximum(static + np.maximum(peaks, step), construction).max(axis=1).tolist()
    return [(own, need(run.resolved, own, gpu, run.held.outside)) for run, own in zip(runs, allocated, strict=True)]


def least(run: Laid, gpu: Gpu) -> Need:
    """Returns whether the run could fit at all: with one micro-batch alive, the least of any order."""
    static, step, construction = run.held.fixed.T
    forward = run.held.chunks[:, :, 2].max(axis=1)
    most = np.maximum(static + np.maximum(step, forward), construction).max()
    return need(run.resolved, most.item(), gpu, run.held.outside)


@lru_cache(maxsize=1024)
def _everywhere(flight: InFlight) -> _Everywhere:
    """Found once for each order: a schedule has hundreds of situations, of which a few can be the costliest."""
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
        """Returns ``[runs, pp]``: bytes at the costliest situation of each rank. ``each`` ``[runs, pp, chunks, 4]``: see
        :class:`projector.memory.holding.Sizes`."""
        total = each[:, self._rank, self._chunk, np.where(self._forward, 2, 3)]
        total += (self._alive * each[..., 0][:, self._rank]).sum(axis=2)
        if self._pending.any():
            total += (self._pending * each[..., 1][:, self._rank]).sum(axis=2)
        return np.asarray(np.maximum.reduceat(total, self._starts, axis=1))


def _undominated(met: Situations) -> NDArray[np.intp]:
    """Rows of the situations in which more is alive than in any other at the same kind of action on the same chunk."""
    found: list[int] = []
    for key in sorted(set(zip(met.forward.tolist(), met.chunk.tolist(), strict=True))):
        rows = np.flatnonzero((met.forward == key[0]) & (met.chunk == key[1]))
        counts = np.concatenate([met.alive[rows], met.pending[rows]], axis=1)
        covered = (counts[:, None] <= counts[None]).all(axis=2)  # distinct rows, so none covers another that covers it
        found += rows[covered.sum(axis=1) == 1].tolist()
    return np.array(sorted(found), np.intp)
