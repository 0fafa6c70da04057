"""Plots of the rows: projected against measured by GPU, and the ratio of the two in lines of one group each.

Ratios are drawn on logarithmic axes, where twice too fast and twice too slow are equally far from right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.contracts.results import Row
from harness.report.plot import BLUE, GREY, PALE, VERMILION, blank, log_ticks, plain
from harness.score.accuracy import by

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["errors_by_model", "measured_projected", "ratio_lines"]

MOST_MODELS = 40
PANELS_ACROSS = 4
TICKS = (0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 5.0, 10.0)
FEW_TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# Inches of a panel, and the ratio of its ends, from which the labels of all ticks have room.
WIDE, WIDE_SPAN = 5.0, 20.0
CROWD = 100


def measured_projected(rows: Sequence[Row], title: str) -> Figure | None:
    """A panel a GPU, most rows first: projected over measured TGS with the ±10 % band. None: no rows."""
    rows = [r for r in rows if r.measured_tgs and r.projected_tgs]
    if not rows:
        return None
    groups = sorted(by(rows, lambda r: r.gpu).items(), key=lambda item: (-len(item[1]), item[0]))
    across = min(PANELS_ACROSS, len(groups))
    down = -(-len(groups) // across)
    figure = blank(max(4.6, 3.0 * across), 0.5 + 2.9 * down)
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
    log_ticks(*ends, (axes.xaxis, axes.yaxis))
    axes.set_title(f"{gpu}: {sum(within)} of {len(rows)} within", fontsize=9)
    axes.set_aspect("equal")
    plain(axes)


def errors_by_model(rows: Sequence[Row], title: str) -> Figure | None:
    """One line a model: every row's projected / measured TGS, a box of the quartiles, most wrong median first."""
    import numpy as np

    ratios = {
        m: _ratios(members) for m, members in by((r for r in rows if r.error is not None), lambda r: r.model).items()
    }
    if not ratios:
        return None
    names = sorted(ratios, key=lambda m: -abs(float(np.log(np.median(ratios[m])))))[:MOST_MODELS][::-1]
    figure = blank(7.4, 1.3 + 0.26 * len(names))
    axes = figure.add_subplot()
    _lines(axes, {name: ratios[name] for name in names})
    axes.set_xlabel("projected / measured tokens/s/GPU (band: ±10 %; orange: median)", fontsize=9)
    left_out = f" ({len(names)} of {len(ratios)} models)" if len(ratios) > len(names) else ""
    axes.set_title(title + left_out, fontsize=11)
    return figure


def ratio_lines(axes: Any, groups: Mapping[str, Sequence[Row]]) -> None:
    """One line a group from below: every compared row's projected / measured TGS with median and quartiles."""
    _lines(axes, {name: _ratios(rows) for name, rows in groups.items()})


def _ratios(rows: Iterable[Row]) -> Any:
    import numpy as np

    return np.array([1.0 + r.error for r in rows if r.error is not None])


def _lines(axes: Any, ratios: Mapping[str, Any]) -> None:
    import numpy as np

    plain(axes)
    axes.axvspan(0.9, 1.1, color=PALE, zorder=0)
    axes.axvline(1.0, color=GREY, linewidth=0.8, zorder=1)
    grey = {"color": "#777777", "linewidth": 0.9}
    axes.boxplot(
        list(ratios.values()),
        orientation="horizontal",
        positions=range(len(ratios)),
        widths=0.6,
        showfliers=False,
        medianprops={"color": VERMILION, "linewidth": 1.6},
        boxprops=grey,
        whiskerprops=grey,
        capprops=grey,
        manage_ticks=False,
        zorder=4,
    )
    for i, found in enumerate(ratios.values()):
        offsets = i + 0.22 * np.sin(2.4 * np.arange(len(found)))
        axes.scatter(found, offsets, s=7, color=BLUE, alpha=_opacity(len(found)), linewidths=0, zorder=3)
    low, high = min(r.min() for r in ratios.values()), max(r.max() for r in ratios.values())
    ends = min(0.8, low) / 1.08, max(1.25, high) * 1.08
    narrow = axes.get_figure().get_figwidth() / axes.get_gridspec().ncols < WIDE
    ticks = FEW_TICKS if narrow or ends[1] / ends[0] > WIDE_SPAN else TICKS
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{t:g}×" for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(*ends)
    axes.set_yticks(range(len(ratios)), [f"{m} ({len(found)})" for m, found in ratios.items()])
    axes.set_ylim(-0.7, len(ratios) - 0.3)


def _opacity(marks: int) -> float:
    """Of one mark: crowds stay readable, single marks stay visible."""
    return 0.55 if marks < CROWD else 0.3
