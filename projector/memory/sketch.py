"""Memory over time as text: one line a rank, time from left to right, height in eighths of the highest peak."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from projector.memory.timeline import RankTimeline

_LEVELS = " ▁▂▃▄▅▆▇█"
_LABEL = 30  # columns of rank, always and peak
GIB = 2.0**30


def sketch(lines: Sequence[RankTimeline], width: int = 100) -> str:
    """Each column shows the highest memory of its slice of time, between what every rank always holds and the highest
    peak of all ranks; a rank that works never shows an empty column. ``width``: columns in all, at least 50."""
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
    """Highest bytes in each of ``columns`` equal slices: actions at their costliest, what is kept in between."""
    edges = np.linspace(0.0, longest, columns + 1)
    out = np.full(columns, line.floor)
    first = np.clip(np.searchsorted(edges, line.start, side="right") - 1, 0, columns - 1)
    last = np.clip(np.searchsorted(edges, line.end, side="left") - 1, 0, columns - 1)
    nexts = np.append(first[1:], columns - 1)
    for begin, end, until, during, after in zip(first, last, nexts, line.during, line.after, strict=True):
        out[begin : end + 1] = np.maximum(out[begin : end + 1], line.floor + during)
        out[end + 1 : until] = np.maximum(out[end + 1 : until], line.floor + after)
    return out
