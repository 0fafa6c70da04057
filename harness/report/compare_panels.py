"""Draws the figures of a comparison: tokens/s/GPU, memory, loss, breakdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.compare.side import Side
from harness.compare.verdict import interval
from harness.report.compare_marks import MOST_POINTS, RunMark, empty, having, without
from harness.report.plot import GREY

_MOST_PARTS = 8
_WHOLE = "whole configuration"
_LEAST_PART = 0.002  # least share of the longest bar: a shorter bar is not seen


def _bars(axes: Any, found: Sequence[RunMark], values: Sequence[float], texts: Sequence[str]) -> None:
    places = range(len(found))
    bars = axes.bar(places, values, color=[look.colour for look in found], width=0.6, alpha=0.85)
    axes.bar_label(bars, texts, padding=4, fontsize=8)
    axes.set_xticks(list(places), [look.letter for look in found])
    axes.margins(y=0.16)


def rate(axes: Any, shown: Sequence[RunMark]) -> None:
    nothing = "no run says its batch, sequence and GPUs"
    known = having(axes, shown, lambda side: side.tgs, "tokens/s/GPU, 90 % interval", "TGS", nothing)
    if not known:
        return
    values = [look.side.tgs or 0.0 for look in known]
    _bars(axes, known, values, [f"{value:,.0f}" for value in values])
    for place, look in enumerate(known):
        value = look.side.tgs or 0.0
        if (ends := interval(look.side)) is not None:
            axes.vlines(place, value / ends[1], value / ends[0], color="black", linewidth=1.6)
    axes.set_ylabel("tokens/s/GPU")


def memory(axes: Any, found: Sequence[RunMark]) -> None:
    """Draws one bar for each kind of peak memory that a run states, with the GPU's memory as a line above."""
    title, nothing = "peak memory, line = the GPU's", "no run states its memory"
    known = having(axes, found, lambda side: side.memory, title, "memory", nothing)
    if not known:
        return
    bars = [(look, kind, gib) for look in known for kind, gib in sorted(look.side.memory.items(), key=lambda i: -i[1])]
    _bars(axes, [look for look, _, _ in bars], [gib for _, _, gib in bars], [f"{gib:.1f}" for _, _, gib in bars])
    axes.set_xticks(range(len(bars)), [f"{look.letter}\n{kind}" for look, kind, _ in bars])
    for place, (look, _, _) in enumerate(bars):
        if look.side.capacity_gib:
            axes.hlines(look.side.capacity_gib, place - 0.4, place + 0.4, color=GREY, linewidth=1.4, linestyle=":")
    axes.set_ylabel("GiB")


def tflops(axes: Any, shown: Sequence[RunMark]) -> None:
    """Draws the TFLOP/s of one GPU, with tokens/s/GPU below the run's letter."""
    if not any(look.side.tflops for look in shown):
        rate(axes, shown)
        return
    known = having(axes, shown, lambda side: side.tflops, "TFLOP/s/GPU, tokens/s/GPU", "configuration", "")
    values = [look.side.tflops or 0.0 for look in known]
    _bars(axes, known, values, [f"{value:,.0f}" for value in values])
    axes.set_xticks(range(len(known)), [f"{look.letter}\n{look.side.tgs or 0:,.0f}" for look in known])
    axes.set_ylabel("TFLOP/s/GPU")


def loss(axes: Any, found: Sequence[RunMark]) -> None:
    _lines(axes, found, "loss", {look.letter: look.side.series.loss for look in found if look.side.series is not None})


def curve(name: str, unit: str = "") -> Callable[[Any, Sequence[RunMark]], None]:
    """Returns the function that draws a panel of the figure ``name``, of which a log has one value a step."""

    def draw(axes: Any, found: Sequence[RunMark]) -> None:
        values = {look.letter: s.curves[name] for look in found if (s := look.side.series) and name in s.curves}
        _lines(axes, found, f"{name} of a step", values, unit)

    return draw


def _lines(axes: Any, found: Sequence[RunMark], what: str, values: Mapping[str, Any], unit: str = "") -> None:
    """Draws a line a run over iterations. ``values``: one a step, by the run's letter; NaN where none is printed."""
    known = [look for look in found if look.letter in values and np.isfinite(values[look.letter]).any()]
    axes.set_title(f"{what}{without([look for look in found if look not in known], what)}")
    if not known:
        empty(axes, f"no run prints its {what}")
        return
    for look in known:
        series, figures = look.side.series, values[look.letter]
        assert series is not None
        places = np.flatnonzero(np.isfinite(figures))
        places = places[:: max(1, -(-len(places) // MOST_POINTS))]
        often = max(1, len(places) // 12)
        style = {"marker": look.marker, "markevery": often, "markersize": 4, "linewidth": 1.1}
        axes.plot(series.iteration[places], figures[places], color=look.colour, **style)
    axes.set(xlabel="iteration", ylabel=unit or what)


def breakdown(axes: Any, found: Sequence[RunMark]) -> None:
    """Draws bars by part: the runs' own timers, unless more of the runs can be projected than have timers."""
    timed = sum(bool(look.side.timers) for look in found) >= max(sum(bool(look.side.projected) for look in found), 1)
    title, lacking = ("timers, one inside another", "timers") if timed else ("projected, exposed seconds", _WHOLE)

    def times_of(side: Side) -> dict[str, float]:
        return dict(side.timers if timed else side.projected)

    shown = having(axes, found, times_of, f"breakdown: {title}", lacking, f"no timers, and no run says its {_WHOLE}")
    known = [(look, times_of(look.side)) for look in shown]
    if not known:
        return
    names = dict.fromkeys(name for _, times in known for name in times)
    largest = sorted(names, key=lambda name: -max(times.get(name, 0.0) for _, times in known))
    least = _LEAST_PART * max(max(times.values()) for _, times in known)
    largest = [n for n in largest if any(times.get(n, 0.0) > least for _, times in known)][:_MOST_PARTS]
    height = 0.8 / len(known)
    for i, (look, times) in enumerate(known):
        places = [row + (i + 0.5) * height - 0.4 for row in range(len(largest))]
        axes.barh(
            places, [times.get(name, 0.0) for name in largest], height=0.92 * height, color=look.colour, alpha=0.85
        )
    axes.set_yticks(range(len(largest)), [name.removesuffix("_s") for name in largest])
    axes.invert_yaxis()
    axes.set_xlabel("seconds per step")
