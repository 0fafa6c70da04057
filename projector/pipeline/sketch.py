"""Shows a timeline as text: one line a rank, time from left to right."""

from __future__ import annotations

import numpy as np

from projector.errors import Problem, raise_all
from projector.pipeline.timeline import Timeline
from projector.pipeline.types import KINDS

IDLE = "·"
LABEL = 14  # columns for the rank and its bubble


def sketch(timeline: Timeline, width: int = 100) -> str:
    """Returns the text of a timeline: each column shows what fills most of its slice of time: ``F``, ``B``, ``W``
    (chunks after the first in lower case) or ``·``. Raises :class:`InputError` for a batch of timelines or a width of
    less than 20."""
    problems = []
    if timeline.end.ndim != 1:
        problems.append(Problem("pipeline", "timeline", timeline.end.shape, "one evaluation: timeline.at(row)"))
    if width < LABEL + 6:
        problems.append(Problem("pipeline", "width", width, f"at least {LABEL + 6} columns"))
    raise_all(problems)
    plan, columns = timeline.compiled, width - LABEL
    total = float(timeline.makespan)
    names = np.asarray(KINDS)[plan.kind]
    marks = np.where(plan.chunk == 0, names, np.char.lower(names))
    start, end = timeline.shown
    idle = timeline.bubble_of_makespan
    lines = []
    for rank in range(plan.schedule.pp):
        actions = plan.own(rank)
        cells = _cells(start[actions], end[actions], marks[actions], total, columns)
        lines.append(f"{rank:>4} {idle[rank]:>6.1%} │ {cells}"[:width])
    schedule = plan.schedule
    head = f"{schedule.name} pp={schedule.pp} vpp={schedule.vpp} m={schedule.microbatches}: {total * 1e3:.3f} ms, "
    return "\n".join([f"{head}bubble {float(timeline.bubble):.1%}", "rank  idle", *lines])


def _cells(
    start: np.ndarray[tuple[int], np.dtype[np.float64]],
    end: np.ndarray[tuple[int], np.dtype[np.float64]],
    marks: np.ndarray[tuple[int], np.dtype[np.str_]],
    total: float,
    columns: int,
) -> str:
    if total <= 0:
        return IDLE * columns
    edges = np.linspace(0.0, total, columns + 1)
    inside = np.minimum(end[:, None], edges[1:]) - np.maximum(start[:, None], edges[:-1])
    inside = np.maximum(inside, 0.0)
    most = inside.argmax(axis=0)
    quiet = (edges[1:] - edges[:-1]) - inside.sum(axis=0)
    return "".join(np.where(inside.max(axis=0) >= quiet, marks[most], IDLE))
