"""Draws a timeline: one lane a rank, time from left to right, and what is alive on each rank below.

Colours are from the colour-blind-safe set of Okabe and Ito (jfly.uni-koeln.de/color); chunks after the first are paler.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from projector.errors import Problem, raise_all
from projector.io.files import figure_problems, save_figure
from projector.pipeline.residency import resident
from projector.pipeline.timeline import Timeline
from projector.pipeline.types import KINDS

COLOURS = {"F": "#0072B2", "B": "#E69F00", "W": "#009E73"}
WORDS = {"F": "forward", "B": "backward", "W": "weight gradient"}
GREY, PALE = "#444444", "#F2F2F2"
LANE = 0.86  # height of an action in its lane of 1
INCHES_PER_CHARACTER = 0.075  # width of a digit of micro-batch numbers
LANES_WIDTH = 11.0  # inches
MANY = 150  # actions of a rank above which seams and numbers only blur
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def save(
    timelines: Sequence[Timeline],
    path: Path | str,
    *,
    bytes_per_stage: ArrayLike | None = None,
    static: ArrayLike | None = None,
) -> Path:
    """Draws ``timelines`` one below the other on the same scale of time into ``path`` (PNG, SVG or PDF by its ending).

    ``bytes_per_stage`` ``[stages]``: what a micro-batch keeps on each virtual stage, ``static`` ``[pp]``: what stays on
    each rank; with them a last panel draws the memory of the first timeline over time. Raises :class:`InputError` for
    another ending, a missing folder or a batch of timelines.
    """
    target = Path(path)
    problems = figure_problems(target)
    if not timelines or any(timeline.end.ndim != 1 for timeline in timelines):
        problems.append(Problem("pipeline", "timelines", len(timelines), "evaluations, each one: timeline.at(row)"))
    raise_all(problems)
    return save_figure(target, drawn(timelines, bytes_per_stage, static))


def drawn(
    timelines: Sequence[Timeline],
    bytes_per_stage: ArrayLike | None = None,
    static: ArrayLike | None = None,
    titles: Sequence[str] = (),
) -> Any:
    """Returns the figure of ``timelines``; parameters as of :func:`save`."""
    from matplotlib.figure import Figure

    longest = max(float(timeline.makespan) for timeline in timelines)
    unit, word = next((pair for pair in UNITS if longest >= 2 * pair[0]), UNITS[-1])
    heights = [0.75 + 0.3 * timeline.compiled.schedule.pp for timeline in timelines]
    heights += [2.0] if bytes_per_stage is not None else []
    figure = Figure(figsize=(13, sum(heights) + 0.6), layout="constrained")
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for number, (axes, timeline) in enumerate(zip(panels, timelines, strict=False)):
        _lanes(axes, timeline, unit, longest, titles[number] if number < len(titles) else "")
    if bytes_per_stage is not None:
        _memory(panels[-1], timelines[0], unit, bytes_per_stage, static)
    panels[-1].set_xlabel(f"time in the step, {word}")
    _legend(figure, timelines)
    return figure


def _lanes(axes: Any, timeline: Timeline, unit: float, longest: float, title: str) -> None:
    plan, schedule = timeline.compiled, timeline.compiled.schedule
    chunks = schedule.chunks
    start, end = (times / unit for times in timeline.shown)
    length = end - start
    axes.set_facecolor(PALE)
    seam = 0.4 if plan.size <= MANY * schedule.pp else 0.0
    for rank in range(schedule.pp):
        actions = plan.own(rank)
        for code, kind in enumerate(KINDS):
            for index in range(chunks):
                chosen = actions[(plan.kind[actions] == code) & (plan.chunk[actions] == index)]
                spans = list(zip(start[chosen].tolist(), length[chosen].tolist(), strict=True))
                shade = 1.0 - 0.55 * index / max(1, chunks - 1)
                axes.broken_barh(
                    spans, (rank - LANE / 2, LANE), facecolors=_paler(COLOURS[kind], shade), edgecolors="white",
                    linewidth=seam,
                )  # fmt: skip
        if seam:
            dark = plan.chunk[actions] > (chunks - 1) / 2
            _numbers(axes, plan.microbatch[actions], start[actions], length[actions], dark, rank, longest / unit)
        idle = f"{100 * timeline.bubble_of_makespan[rank]:.1f} % / {100 * timeline.bubble_of_span[rank]:.1f} %"
        axes.text(longest / unit * 1.005, rank, idle, va="center", fontsize=7, color=GREY)
    axes.set_ylim(schedule.pp - 0.5, -0.5)
    axes.set_xlim(0, longest / unit)
    axes.set_yticks(range(schedule.pp), [f"rank {rank}" for rank in range(schedule.pp)], fontsize=8)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    head = f"{schedule.name}, pp {schedule.pp}, vpp {schedule.vpp}, {schedule.microbatches} micro-batches: "
    span = float(timeline.makespan) / unit
    words = next(word for size, word in UNITS if size == unit)
    axes.set_title(title or f"{head}{span:.4g} {words}, bubble {100 * float(timeline.bubble):.1f} % of the makespan",
                   loc="left", fontsize=10)  # fmt: skip
    axes.text(longest / unit * 1.005, -0.75, "idle of makespan / of span", fontsize=7, color=GREY)


def _numbers(
    axes: Any, microbatch: NDArray[np.intp], start: Any, length: Any, dark: Any, rank: int, longest: float
) -> None:
    """Writes micro-batch numbers where they have room, dark on pale actions."""
    rows = zip(microbatch.tolist(), start.tolist(), length.tolist(), dark.tolist(), strict=True)
    for number, begin, lasts, on_pale in rows:
        if lasts / longest * LANES_WIDTH > INCHES_PER_CHARACTER * (len(str(number)) + 0.4):
            colour = GREY if on_pale else "white"
            axes.text(begin + lasts / 2, rank, number, ha="center", va="center", fontsize=6.5, color=colour)


def _memory(axes: Any, timeline: Timeline, unit: float, bytes_per_stage: ArrayLike, static: ArrayLike | None) -> None:
    plan = timeline.compiled
    bounds = plan.schedule.flat.starts
    alive = resident(plan, np.asarray(bytes_per_stage, dtype=np.float64)) / 2**30
    base = np.zeros(plan.schedule.pp) if static is None else np.asarray(static, dtype=np.float64) / 2**30
    shown = sorted({0, plan.schedule.pp // 2, plan.schedule.pp - 1})
    for rank, colour in zip(shown, (COLOURS["F"], COLOURS["W"], "#D55E00"), strict=False):
        rows = slice(bounds[rank], bounds[rank + 1])
        actions = plan.own(rank)
        times = np.where(plan.kind[actions] == 0, timeline.start[actions], timeline.end[actions]) / unit
        axes.step(np.append(0, times), base[rank] + np.append(0, alive[rows]), where="post", label=f"rank {rank}",
                  color=colour, linewidth=1)  # fmt: skip
    axes.set_ylabel("GiB", fontsize=8)
    axes.set_title("kept between forward and backward" + (", over what always stays" if static is not None else ""),
                   loc="left", fontsize=10)  # fmt: skip
    axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
    axes.grid(True, axis="y", color="#E2E2E2", linewidth=0.6)
    axes.legend(fontsize=7, ncols=len(shown), frameon=False, loc="upper right")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(figure: Any, timelines: Sequence[Timeline]) -> None:
    from matplotlib.patches import Patch

    split = any(timeline.compiled.schedule.split for timeline in timelines)
    many = max(timeline.compiled.schedule.chunks for timeline in timelines) > 1
    marks = [Patch(color=COLOURS[kind], label=WORDS[kind]) for kind in KINDS if split or kind != "W"]
    if many:
        marks.append(Patch(color=_paler(COLOURS["F"], 0.45), label="… of the last chunk (chunks between: shades)"))
    marks += [Patch(facecolor=PALE, edgecolor=GREY, linewidth=0.5, label="waiting")]
    figure.legend(handles=marks, loc="outside upper right", ncols=len(marks), fontsize=8, frameon=False)


def _paler(colour: str, strength: float) -> str:
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(255 - strength * (255 - part)):02x}" for part in parts)
