"""Plots of the rows: projected against measured by GPU, and the ratio of the two in lines of one group each.

Ratios are drawn on logarithmic axes, where twice too fast and twice too slow are equally far from right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.contracts import frame
from harness.report.plot import BLUE, GREY, PALE, VERMILION, blank, compared, grid, plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MOST_MODELS = 40
PANELS_ACROSS = 4
TICKS = (0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 5.0, 10.0)
FEW_TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# Inches of a panel, and the ratio of its ends, from which the labels of all ticks have room.
WIDE, WIDE_SPAN = 5.0, 20.0
CROWD = 100


def measured_projected(rows: pd.DataFrame, title: str) -> Figure | None:
    """A panel a GPU, most rows first: projected over measured TGS with the ±10 % band. None: no rows."""
    rows = rows[(rows["measured_tgs"] > 0.0) & (rows["projected_tgs"] > 0.0)]
    if rows.empty:
        return None
    groups = sorted(frame.parts(rows, ["gpu"]), key=lambda item: (-len(item[1]), item[0]))
    across = min(PANELS_ACROSS, len(groups))
    figure = blank(max(4.6, 3.0 * across), 0.5 + 2.9 * -(-len(groups) // across))
    for axes, ((gpu,), members) in zip(grid(figure, len(groups), across), groups, strict=True):
        drawn = members.dropna(subset=["interval_low", "interval_high"])
        bars = drawn["measured_tgs"], drawn["interval_low"], drawn["interval_high"]
        axes.vlines(*bars, color=GREY, linewidth=0.4, alpha=0.25)
        within = (members["error"].abs() <= 0.1).to_numpy()
        measured, projected = members["measured_tgs"].to_numpy(), members["projected_tgs"].to_numpy()
        compared(axes, measured, projected, within, np.arange(len(members)), {"s": 14, "alpha": 0.7})
        axes.set_title(f"{gpu}: {within.sum()} of {len(members)} within", fontsize=9)
    figure.suptitle(
        f"{title}: on the line = exact, blue circle = within ±10 %, orange triangle = outside, bar = 90 % interval",
        fontsize=11,
    )
    figure.supxlabel("measured tokens/s/GPU", fontsize=9)
    figure.supylabel("projected tokens/s/GPU", fontsize=9)
    return figure


def errors_by_model(rows: pd.DataFrame, title: str) -> Figure | None:
    """One line a model: every row's projected / measured TGS, a box of the quartiles, most wrong median first."""
    known = rows[rows["error"].notna()]
    ratios = {model: _ratios(members) for (model,), members in frame.parts(known, ["model"])}
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


def ratio_lines(axes: Any, groups: Mapping[str, pd.DataFrame]) -> None:
    """One line a group from below: every compared row's projected / measured TGS with median and quartiles."""
    _lines(axes, {name: _ratios(rows) for name, rows in groups.items()})


def _ratios(rows: pd.DataFrame) -> Any:
    return 1.0 + rows["error"].dropna().to_numpy(dtype=float)


def _lines(axes: Any, ratios: Mapping[str, Any]) -> None:
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
