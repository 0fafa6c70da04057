"""Draws the steps of a comparison: step time over iterations, and stability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.compare.side import SPIKE, Series, Side, stability
from harness.report.compare_marks import MOST_POINTS, RunMark, empty
from harness.report.plot import GREY


def step_time(axes: Any, found: Sequence[RunMark]) -> None:
    """Draws kept steps filled, cut ones as crosses, the steady window as a line at the median, a stated figure dashed."""
    timed = [look for look in found if look.side.step_seconds]
    if not timed:
        empty(axes, "no step times")
        axes.set_title("step time")
        return
    drawn = [look for look in timed if look.side.series is not None]
    ceiling = max(_ceiling(look.side) for look in timed)
    above = 0
    for look in drawn:
        series = look.side.series
        assert series is not None
        above += _steps(axes, look, series, ceiling)
    span = axes.get_xlim() if drawn else (0.0, 1.0)
    for look in timed:
        value = look.side.step_seconds or 0.0
        if look.side.series is None:
            axes.hlines(value, *span, color=look.colour, linestyle="--", linewidth=1.2)
            _letter(axes, look, span[1])
    axes.set_ylim(bottom=_floor(timed), top=ceiling * 1.05)
    axes.set(xlabel="iteration" if drawn else "", ylabel="seconds per step")
    if not drawn:
        axes.set_xticks([])
    axes.set_title("step time; line: median, over the steady window")
    notes = ["× cut"] if drawn else []
    notes += [f"{above} slower drawn at the edge"] if above else []
    notes += ["dashed: a stated figure"] if len(drawn) < len(timed) else []
    axes.text(0.99, 0.99, ", ".join(notes), transform=axes.transAxes, ha="right", va="top", fontsize=8, color=GREY)


def _steps(axes: Any, look: RunMark, series: Series, ceiling: float) -> int:
    for steady, marker in ((False, "x"), (True, look.marker)):
        where = np.flatnonzero((series.reasons == 0) == steady)
        where = where[:: max(1, -(-len(where) // MOST_POINTS))]
        shown = np.minimum(series.seconds[where], ceiling)
        style = {"markeredgewidth": 0.8 if not steady else 0.0, "linestyle": "none", "alpha": 0.55, "markersize": 3.0}
        axes.plot(series.iteration[where], shown, marker, color=look.colour, **style)
    window = series.iteration[series.reasons == 0]
    axes.hlines(look.side.step_seconds, window.min(), window.max(), color=look.colour, linewidth=1.6)
    _letter(axes, look, window.max())
    return int((series.seconds > ceiling).sum())


def _letter(axes: Any, look: RunMark, end: float) -> None:
    """Writes the letter of a run behind the ``end`` of its line, beside the letters of earlier runs."""
    shift = (4 + 9 * (ord(look.letter) - ord("A")), 0)
    style = {"color": look.colour, "va": "center", "fontsize": 9, "fontweight": "bold"}
    axes.annotate(look.letter, (end, look.side.step_seconds), xytext=shift, textcoords="offset points", **style)


def _ceiling(side: Side) -> float:
    """Returns the step time up to which the steady state shows whole, and a little above."""
    middle = side.step_seconds or 0.0
    top = middle if side.series is None else float(side.series.kept.max())
    return middle + max(2 * (top - middle), 0.15 * middle)


def _floor(timed: Sequence[RunMark]) -> float:
    """Returns zero, unless all runs lie within a narrow band: then their differences are to be seen."""
    lowest = min(
        float(s.kept.min()) if (s := look.side.series) is not None else look.side.step_seconds or 0.0 for look in timed
    )
    highest = max(look.side.step_seconds or 0.0 for look in timed)
    return lowest - 0.15 * (highest - lowest) - 0.02 * lowest if lowest > 0.6 * highest else 0.0


def stable(axes: Any, found: Sequence[RunMark]) -> None:
    """Draws settled steps over their median: box of the quartiles, whiskers at 5 and 95 %, steps beyond as points."""
    axes.set_title("stability: step over its median after warm-up (box 25-75 %, whisker 5-95 %)")
    known = [look for look in found if look.side.series is not None or look.side.rel_std]
    if not known:
        empty(axes, "no run has its steps or a spread")
        return
    worst = 1.0
    for place, look in enumerate(known):
        series = look.side.series
        if series is None:
            spread = look.side.rel_std or 0.0
            axes.errorbar([place], [1.0], yerr=[spread], color=look.colour, marker=look.marker, capsize=8)
            worst = max(worst, 1 + spread)
            continue
        relative = series.seconds[series.settled] / float(np.median(series.kept))
        low, high = np.quantile(relative, [0.05, 0.95])
        beyond = relative[(relative < low) | (relative > high)][:MOST_POINTS]
        lines = {name: {"color": look.colour} for name in ("medianprops", "boxprops", "whiskerprops", "capprops")}
        box = {"positions": [place], "widths": 0.5, "whis": (5, 95), "showfliers": False, "manage_ticks": False}
        axes.boxplot([relative], **box, **lines)
        shift = 0.12 * np.sin(2.4 * np.arange(len(beyond)))
        shown = np.minimum(beyond, 2.0)
        axes.scatter(place + shift, shown, s=9, marker=look.marker, color=look.colour, alpha=0.6, linewidths=0)
        worst = max(worst, float(relative.max()))
    top = min(max(1.002, 1 + 1.25 * (worst - 1)), 2.1)
    if worst >= SPIKE:
        axes.axhline(SPIKE, color=GREY, linewidth=0.8, linestyle=":")
    for place, look in enumerate(known):
        axes.text(
            place, 1.0, _caption(look.side), transform=axes.get_xaxis_transform(), ha="center", va="top", fontsize=8
        )
    axes.set_ylim(top=1 + 1.45 * (top - 1))
    axes.set_xticks(range(len(known)), [look.letter for look in known])
    axes.set_xlim(-0.6, len(known) - 0.4)
    axes.set_ylabel("step / median" + ("; above 2 at 2" if worst > 2 else ""))


def _caption(side: Side) -> str:
    if side.series is None:
        return f"stated spread\n± {100 * (side.rel_std or 0.0):.2g} %"
    s = stability(side.series)
    return f"spread {100 * s.spread:.2g} %\n{s.outliers} outliers, {s.spikes} spikes\n+{100 * s.excess:.1f} % time"
