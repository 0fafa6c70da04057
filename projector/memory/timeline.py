"""Memory over time: the bytes that every pipeline rank has allocated while it runs its schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.hardware.types import Gpu
from projector.memory.holding import RankHoldings, holdings
from projector.pipeline import Situations, Timeline, replay
from projector.pipeline.residency import Replay

_F, _W = 0, 2


@dataclass(frozen=True, eq=False)
class RankTimeline:
    """One rank through one step, ``k`` actions in its own order.

    ``start``, ``end`` ``[k]``: seconds; ``before``, ``after`` ``[k]``: bytes saved for backward just before and after
    an action; ``during`` ``[k]``: the same at its costliest moment, transients included. ``static``: bytes by component
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
        """Returns all static bytes."""
        return sum(self.static.values())

    @property
    def peak(self) -> float:
        """Returns the highest number of bytes in the step."""
        return self.floor + (float(self.during.max()) if self.during.size else 0.0)


def memory_timeline(resolved: Resolved, gpu: Gpu, timeline: Timeline) -> tuple[RankTimeline, ...]:
    """Returns the allocated bytes of every rank along ``timeline``, one step of the schedule that ``resolved`` asks for.

    The peaks are those of :func:`projector.memory.plan.plan`, where neither the optimizer step nor the construction of
    the buffers is higher. Raises :class:`projector.errors.InputError` as that does.
    """
    played = replay(timeline.compiled.schedule)
    held = holdings(resolved, gpu.arch, played.schedule.placement)
    return tuple(_rank(rank, own, played, timeline) for rank, own in enumerate(held))


def _rank(rank: int, part: RankHoldings, played: Replay, timeline: Timeline) -> RankTimeline:
    plan, (low, high) = timeline.compiled, played.schedule.flat.starts[rank : rank + 2]
    own = plan.own(rank)
    kind, chunk = plan.kind[own], plan.chunk[own]
    met = Situations(kind == _F, chunk, played.alive[low:high], played.pending[low:high])
    before, busy = met.bytes(np.array([memory.sizes for memory in part.chunks]))
    during, after = np.where(kind == _W, before, busy), np.append(before[1:], 0.0)
    return RankTimeline(rank, timeline.start[own], timeline.end[own], before, during, after, part.kept.components)


_LEVELS = " ▁▂▃▄▅▆▇█"
_LABEL = 30  # columns of rank, always and peak
GIB = 2.0**30


def sketch(lines: Sequence[RankTimeline], width: int = 100) -> str:
    """Returns a picture in characters: each column shows the highest memory of its slice of time, between what every
    rank always holds and the highest peak of all ranks; a rank that works never shows an empty column. ``width``:
    columns in all, at least 50."""
    columns = max(20, width - _LABEL)
    longest = max((float(line.end.max()) for line in lines if line.end.size), default=1.0)
    low, high = min(line.floor for line in lines), max(line.peak for line in lines)
    out = [f"rank  always    peak GiB   {low / GIB:.1f} (empty) to {high / GIB:.1f} GiB (full), {longest:.3f} s"]
    for line in lines:
        slices = _slices(line, longest, columns)
        share = (slices - low) / max(high - low, 1.0)
        marks = "".join(_LEVELS[int(np.ceil(8 * min(1.0, max(0.0, float(part)))))] for part in share)
        out.append(f"{line.rank:>4} {line.floor / GIB:>7.1f} {line.peak / GIB:>7.1f}       │ {marks}"[:width])
    return "\n".join(out)


def _slices(line: RankTimeline, longest: float, columns: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Returns the highest bytes in each of ``columns`` equal slices: actions at their costliest, kept bytes in between."""
    edges = np.linspace(0.0, longest, columns + 1)
    out = np.full(columns, line.floor)
    first = np.clip(np.searchsorted(edges, line.start, side="right") - 1, 0, columns - 1)
    last = np.clip(np.searchsorted(edges, line.end, side="left") - 1, 0, columns - 1)
    nexts = np.append(first[1:], columns - 1)
    for begin, end, until, during, after in zip(first, last, nexts, line.during, line.after, strict=True):
        out[begin : end + 1] = np.maximum(out[begin : end + 1], line.floor + during)
        out[end + 1 : until] = np.maximum(out[end + 1 : until], line.floor + after)
    return out
