"""Memory over time: what every pipeline rank has allocated while it runs its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from projector.frameworks.types import Resolved
from projector.hardware.types import Gpu
from projector.memory.plan import RankParts, rank_parts
from projector.pipeline import Timeline

__all__ = ["RankTimeline", "memory_timeline"]

_F, _B = 0, 1


@dataclass(frozen=True, eq=False)
class RankTimeline:
    """One rank through one step, ``k`` actions in its own order.

    ``start``, ``end`` ``[k]``: seconds; ``before``, ``after`` ``[k]``: bytes saved for backward just before and after an
    action; ``during`` ``[k]``: the same at its costliest moment, transients included. ``static``: bytes by component
    that are there throughout. Gradient reduction and optimizer step follow the last action and are not drawn.
    """

    rank: int
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    before: NDArray[np.float64]
    during: NDArray[np.float64]
    after: NDArray[np.float64]
    static: Mapping[str, float]

    @property
    def floor(self) -> float:
        """All static bytes."""
        return sum(self.static.values())

    @property
    def peak(self) -> float:
        """The highest number of bytes in the step."""
        return self.floor + (float(self.during.max()) if self.during.size else 0.0)


def memory_timeline(resolved: Resolved, gpu: Gpu, timeline: Timeline) -> tuple[RankTimeline, ...]:
    """Allocated bytes of every rank along ``timeline``, one step of the schedule that ``resolved`` asks for.

    The peaks are those of :func:`projector.memory.plan.plan`, where neither the optimizer step nor the construction of
    the buffers is higher. Raises :class:`projector.errors.InputError` as it does.
    """
    plan = timeline.compiled
    bounds = np.append(plan.rank_starts, plan.size)
    return tuple(
        _rank(part, plan.by_rank[bounds[part.rank] : bounds[part.rank + 1]], timeline)
        for part in rank_parts(resolved, gpu)
    )


def _rank(part: RankParts, own: NDArray[np.intp], timeline: Timeline) -> RankTimeline:
    plan = timeline.compiled
    chunk_of = {stage: chunk for chunk, stage in enumerate(plan.schedule.placement[part.rank])}
    chunk = np.array([chunk_of[int(stage)] for stage in plan.stage[own]], dtype=np.intp)
    kind = plan.kind[own]
    saved = np.array([memory.saved for memory in part.chunks])[chunk]
    owed = np.array([memory.pending for memory in part.chunks])[chunk] if plan.schedule.split else 0.0 * saved
    change = np.select([kind == _F, kind == _B], [saved, owed - saved], -owed)
    after = np.cumsum(change)
    before = after - change
    forward = np.array([memory.forward.total for memory in part.chunks])[chunk]
    backward = np.array([memory.backward.total for memory in part.chunks])[chunk] - saved
    during = before + np.select([kind == _F, kind == _B], [forward, backward], 0.0)
    return RankTimeline(part.rank, timeline.start[own], timeline.end[own], before, during, after, part.static)
