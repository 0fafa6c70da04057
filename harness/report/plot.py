"""Plots of the rows: projected against measured, and the error by model. matplotlib is imported when drawn.

Colours are from the colour-blind-safe set of Okabe and Ito (jfly.uni-koeln.de/color). Ratios are drawn on logarithmic
axes, where twice too fast and twice too slow are equally far from right.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.accuracy import by
from harness.results import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["errors_by_model", "measured_projected", "png"]

BLUE, VERMILION, GREY, PALE = "#0072B2", "#D55E00", "#555555", "#E2E2E2"
MOST_MODELS = 40
COLOURS = 64
PANELS_ACROSS = 4
TICKS = (0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 5.0, 10.0)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)


def measured_projected(rows: Sequence[Row], title: str) -> Figure | None:
    """A panel a GPU, most rows first: projected over measured TGS with the ±10 % band. None: no rows."""
    rows = [r for r in rows if r.measured_tgs and r.projected_tgs]
    if not rows:
        return None
    groups = sorted(by(rows, lambda r: r.gpu).items(), key=lambda item: (-len(item[1]), item[0]))
    across = min(PANELS_ACROSS, len(groups))
    down = -(-len(groups) // across)
    figure = _figure(max(4.6, 3.0 * across), 0.5 + 2.9 * down)
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for axes, (gpu, members) in zip(panels, groups, strict=False):
        _panel(axes, gpu, members)
    for axes in panels[len(groups) :]:
        axes.set_axis_off()
    figure.suptitle(
        f"{title}: on the line = exact, blue circle = within ±10 %, orange triangle = outside, bar = 90 % interval",
        fontsize=11,
    )
    figure.supxlabel("measured tokens/s/GPU", fontsize=9)
    figure.supylabel("projected tokens/s/GPU", fontsize=9)
    return figure


def _panel(axes: Any, gpu: str, rows: Sequence[Row]) -> None:
    measured = [r.measured_tgs for r in rows if r.measured_tgs]
    projected = [r.projected_tgs for r in rows if r.projected_tgs]
    ends = (min(*measured, *projected) / 1.5, max(*measured, *projected) * 1.5)
    axes.fill_between(ends, [0.9 * v for v in ends], [1.1 * v for v in ends], color=PALE, zorder=0)
    axes.plot(ends, ends, color=GREY, linewidth=0.8, zorder=1)
    bars = [(r.measured_tgs, r.interval_low, r.interval_high) for r in rows if r.measured_tgs]
    drawn = [(x, low, high) for x, low, high in bars if low is not None and high is not None]
    axes.vlines(*map(list, zip(*drawn, strict=True)) if drawn else ([], [], []), color=GREY, linewidth=0.4, alpha=0.25)
    within = [r.error is not None and abs(r.error) <= 0.1 for r in rows]
    for inside, colour, marker in ((True, BLUE, "o"), (False, VERMILION, "^")):
        axes.scatter(
            [v for v, w in zip(measured, within, strict=True) if w == inside],
            [v for v, w in zip(projected, within, strict=True) if w == inside],
            s=14,
            alpha=0.7,
            linewidths=0,
            color=colour,
            marker=marker,
        )
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    _log_ticks(axes, *ends)
    axes.set_title(f"{gpu}: {sum(within)} of {len(rows)} within", fontsize=9)
    axes.set_aspect("equal")
    _plain(axes)


def _log_ticks(axes: Any, low: float, high: float) -> None:
    """Decades, or 1-2-5 where the axis spans less than two of them; never so many labels that they touch."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    span = high / low
    subs = (1.0,) if span > 100 else (1.0, 2.0, 5.0) if span > 4 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [sub * 10.0**decade for decade in decades for sub in subs if low <= sub * 10.0**decade <= high]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter(FuncFormatter(_short))
        axis.set_minor_locator(NullLocator())


def _short(value: float, _: int) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def errors_by_model(rows: Sequence[Row], title: str) -> Figure | None:
    """One line a model: every row's projected / measured TGS, a box of the quartiles, most wrong median first."""
    import numpy as np

    rows = [r for r in rows if r.error is not None]
    if not rows:
        return None
    ratios = {
        m: np.array([1.0 + r.error for r in g if r.error is not None]) for m, g in by(rows, lambda r: r.model).items()
    }
    names = sorted(ratios, key=lambda m: -abs(float(np.log(np.median(ratios[m])))))[:MOST_MODELS][::-1]
    figure = _figure(7.4, 1.3 + 0.26 * len(names))
    axes = figure.add_subplot()
    _plain(axes)
    axes.axvspan(0.9, 1.1, color=PALE, zorder=0)
    axes.axvline(1.0, color=GREY, linewidth=0.8, zorder=1)
    grey = {"color": "#999999"}
    axes.boxplot(
        [ratios[m] for m in names],
        orientation="horizontal",
        positions=range(len(names)),
        widths=0.6,
        showfliers=False,
        medianprops={"color": VERMILION, "linewidth": 1.6},
        boxprops=grey,
        whiskerprops=grey,
        capprops=grey,
        manage_ticks=False,
    )
    for i, name in enumerate(names):
        offsets = i + 0.22 * np.sin(2.4 * np.arange(len(ratios[name])))
        axes.scatter(ratios[name], offsets, s=8, color=BLUE, alpha=0.5, linewidths=0, zorder=3)
    axes.set_xscale("log")
    low, high = min(r.min() for r in ratios.values()), max(r.max() for r in ratios.values())
    axes.set_xlim(min(0.8, low) / 1.08, max(1.25, high) * 1.08)
    axes.set_xticks(TICKS, [f"{t:g}×" for t in TICKS])
    axes.set_xticks([], minor=True)
    axes.set_xlim(min(0.8, low) / 1.08, max(1.25, high) * 1.08)
    axes.set_yticks(range(len(names)), [f"{m} ({len(ratios[m])})" for m in names])
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.set_xlabel("projected / measured tokens/s/GPU (band: ±10 %; orange: median)", fontsize=9)
    left_out = f" ({len(names)} of {len(ratios)} models)" if len(ratios) > len(names) else ""
    axes.set_title(title + left_out, fontsize=11)
    return figure


def png(figure: Figure, dots_per_inch: int = 120) -> bytes:
    """The figure as PNG of few colours (a quarter of the size), without a time stamp: the same rows, the same bytes."""
    from PIL import Image

    drawn, out = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dots_per_inch)
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(out, format="png", optimize=True)
    return out.getvalue()
