"""Plots of the rows: projected against measured, and the error by model. matplotlib is imported when drawn.

Colours are the colour-blind-safe set of Okabe and Ito (jfly.uni-koeln.de/color); GPUs differ by marker as well.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.accuracy import by
from harness.results import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["errors_by_model", "measured_projected", "png"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8A6F00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
MOST_MODELS = 30


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#E4E4E4", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def measured_projected(rows: Sequence[Row], title: str) -> Figure | None:
    """Projected over measured TGS on logarithmic axes, one colour and marker a GPU, ±10 % band. None: no rows."""
    rows = [r for r in rows if r.measured_tgs and r.projected_tgs]
    if not rows:
        return None
    figure, axes = _figure(7.4, 6.2)
    values = [v for r in rows for v in (r.measured_tgs, r.projected_tgs) if v]
    ends = (min(values) / 1.3, max(values) * 1.3)
    axes.fill_between(ends, [0.9 * v for v in ends], [1.1 * v for v in ends], color="#DDDDDD", label="±10 %", zorder=0)
    axes.plot(ends, ends, color="#555555", linewidth=0.8, zorder=1)
    groups = sorted(by(rows, lambda r: r.gpu).items(), key=lambda item: -len(item[1]))
    for i, (gpu, members) in enumerate(groups):
        axes.scatter(
            [r.measured_tgs for r in members],
            [r.projected_tgs for r in members],
            s=16,
            alpha=0.75,
            linewidths=0,
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[i % len(MARKERS)],
            label=f"{gpu} ({len(members)})",
        )
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, title=title)
    axes.set_xlabel("measured tokens/s/GPU")
    axes.set_ylabel("projected tokens/s/GPU")
    axes.set_aspect("equal")
    axes.legend(loc="upper left", fontsize=8, frameon=False)
    return figure


def errors_by_model(rows: Sequence[Row], title: str) -> Figure | None:
    """One line a model: every row's signed error and the box of their quartiles, worst median first. None: no rows."""
    import numpy as np

    rows = [r for r in rows if r.error is not None]
    if not rows:
        return None
    groups = {
        m: np.array([100 * r.error for r in g if r.error is not None]) for m, g in by(rows, lambda r: r.model).items()
    }
    names = sorted(groups, key=lambda m: -abs(float(np.median(groups[m]))))[:MOST_MODELS][::-1]
    figure, axes = _figure(7.4, 1.4 + 0.28 * len(names))
    axes.axvspan(-10, 10, color="#EEEEEE", zorder=0)
    axes.axvline(0, color="#555555", linewidth=0.8, zorder=1)
    axes.boxplot(
        [groups[m] for m in names],
        orientation="horizontal",
        positions=range(len(names)),
        widths=0.55,
        showfliers=False,
        medianprops={"color": COLOURS[1], "linewidth": 1.4},
        boxprops={"color": "#888888"},
        whiskerprops={"color": "#AAAAAA"},
        capprops={"color": "#AAAAAA"},
        manage_ticks=False,
    )
    for i, name in enumerate(names):
        offsets = i + 0.22 * np.sin(2.4 * np.arange(len(groups[name])))
        axes.scatter(groups[name], offsets, s=7, color=COLOURS[0], alpha=0.5, linewidths=0, zorder=3)
    axes.set_yticks(range(len(names)), [f"{m} ({len(groups[m])})" for m in names], fontsize=8)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.set_xlabel("signed TGS error in %, grey: ±10 %")
    left_out = len(groups) - len(names)
    axes.set_title(title + (f" (the {len(names)} largest medians of {len(groups)})" if left_out else ""), fontsize=11)
    return figure


def png(figure: Figure, dots_per_inch: int = 130) -> bytes:
    """The figure as PNG, without a time stamp, so that the same rows give the same bytes."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=dots_per_inch, metadata={"Software": None})
    return out.getvalue()
