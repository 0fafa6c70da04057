"""Memory as a picture: the bytes of every rank at its peak, and how a few ranks fill and empty through one step.

Colours are from the colour-blind-safe set of Okabe and Ito (jfly.uni-koeln.de/color).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from projector.errors import InputError
from projector.io.files import figure_problems, save_figure
from projector.memory.plan import MemoryPlan
from projector.memory.timeline import RankTimeline

GIB = 2.0**30
GREY = "#444444"
# What is drawn as one band, bottom to top: (label, components, colour).
_STATIC = (
    ("weights", ("weights", "fp8_weight_cache"), "#0072B2"),
    ("gradients", ("gradients", "dummy_wgrad"), "#56B4E9"),
    ("optimizer", ("master_weights", "moments"), "#009E73"),
    ("workspaces", ("workspaces",), "#999999"),
)
_SAVED = ("saved for backward", "#E69F00")
_MOMENT = ("for a moment", "#D55E00")
_PANELS = 4  # ranks whose course is drawn
_HEADROOM = 1.35  # the limit is drawn where it is within this of the highest figure, else it is told in words


def save(plan: MemoryPlan, lines: Sequence[RankTimeline], path: Path | str, title: str = "") -> Path:
    """Draws the figure into ``path`` (PNG, SVG or PDF by its ending). Raises :class:`InputError` for another ending, a
    missing folder or a file that cannot be written."""
    target = Path(path)
    if problems := figure_problems(target):
        raise InputError(problems)
    return save_figure(target, drawn(plan, lines, title))


def drawn(plan: MemoryPlan, lines: Sequence[RankTimeline], title: str) -> Any:
    """Returns the figure: every rank at its peak, and below it the course of a few ranks through a step (``lines``:
    none or all)."""
    from matplotlib.figure import Figure

    shown = _shown(plan) if lines else []
    heights = [2.6, *([1.5] * len(shown))]
    figure = Figure(figsize=(11, sum(heights) + 0.8), layout="constrained")
    panels = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    _peaks(panels[0], plan)
    longest = max((float(line.end.max()) for line in lines if line.end.size), default=1.0)
    for axes, rank in zip(panels[1:], shown, strict=True):
        _course(axes, lines[rank], longest)
    if lines:
        panels[-1].set_xlabel("time in the step, s (gradient reduction and optimizer step follow)", fontsize=8)
    for axes in panels[1:-1]:
        axes.set_xticklabels([])
    if title:
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    _legend(figure)
    return figure


def _shown(plan: MemoryPlan) -> list[int]:
    """Returns the first, fullest, middle and last rank, in order."""
    count = len(plan.ranks)
    fullest = max(plan.ranks, key=lambda rank: rank.allocated).rank
    return sorted(dict.fromkeys((0, fullest, count - 1, count // 2)))[:_PANELS]


def _bands(components: Mapping[str, float]) -> list[tuple[float, str]]:
    return [(sum(components.get(name, 0.0) for name in names), colour) for _, names, colour in _STATIC]


def _peaks(axes: Any, plan: MemoryPlan) -> None:
    for rank in plan.ranks:
        bottom = 0.0
        parts = [*_bands(rank.components), (rank.components["activations"], _SAVED[1])]
        for size, colour in [*parts, (rank.components["transient"], _MOMENT[1])]:
            axes.bar(rank.rank, size / GIB, bottom=bottom / GIB, width=0.72, color=colour)
            bottom += size
        axes.text(rank.rank, bottom / GIB, f"{bottom / GIB:.1f}", ha="center", va="bottom", fontsize=7, color=GREY)
    _mark(axes, plan.device, "--", f"device {plan.device / GIB:.1f}")
    if plan.usable <= _HEADROOM * max(plan.device, plan.allocated):
        _mark(axes, plan.usable, "-", f"usable {plan.usable / GIB:.1f}")
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
    axes.set_xlim(-0.6, len(plan.ranks) - 0.4)
    axes.set_xticks(range(len(plan.ranks)), [str(rank.rank) for rank in plan.ranks], fontsize=8)
    axes.set_xlabel("pipeline rank", fontsize=8)
    margin = f"{plan.margin_bytes / GIB:+.1f} GiB against {plan.usable / GIB:.1f} usable"
    sizes = (plan.allocated / GIB, plan.reserved / GIB, plan.device / GIB)
    held = "{:.1f} GiB allocated, {:.1f} reserved, {:.1f} on the device".format(*sizes)
    axes.set_title(f"peak of each rank, the fullest {held}: {plan.words}, {margin}", loc="left", fontsize=9)
    _plain(axes)


def _mark(axes: Any, size: float, style: str, words: str) -> None:
    axes.axhline(size / GIB, color=GREY, linestyle=style, linewidth=0.9)
    axes.annotate(words, (1.0, size / GIB), xycoords=("axes fraction", "data"), xytext=(4, 0),
                  textcoords="offset points", va="center", fontsize=7, color=GREY)  # fmt: skip


def _course(axes: Any, line: RankTimeline, longest: float) -> None:
    bottom = 0.0
    for size, colour in _bands(line.static):
        axes.axhspan(bottom / GIB, (bottom + size) / GIB, color=colour, linewidth=0)
        bottom += size
    # while an action runs, the larger of what was there before and what it leaves
    held = np.maximum(line.before, line.after)
    times = np.concatenate(([0.0], np.column_stack((line.start, line.end)).ravel(), [longest]))
    kept = np.concatenate(([0.0], np.column_stack((held, line.after)).ravel(), line.after[-1:]))
    axes.fill_between(times, bottom / GIB, (bottom + kept) / GIB, step="post", color=_SAVED[1], linewidth=0)
    low, high = (bottom + held) / GIB, (bottom + np.maximum(held, line.during)) / GIB
    axes.bar(line.start, high - low, line.end - line.start, bottom=low, align="edge", color=_MOMENT[1], linewidth=0,
             alpha=0.75)  # fmt: skip
    axes.set_xlim(0, longest)
    axes.set_ylim(0, line.peak / GIB * 1.1)
    axes.set_title(f"rank {line.rank}: {line.floor / GIB:.1f} GiB always, {line.peak / GIB:.1f} at most in the step",
                   loc="left", fontsize=9)  # fmt: skip
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.set_ylabel("GiB", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(True, axis="y", color="#E2E2E2", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    words = [(label, colour) for label, _, colour in _STATIC]
    marks = [Patch(color=colour, label=label) for label, colour in [*words, _SAVED, _MOMENT]]
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), fontsize=8, frameon=False)
