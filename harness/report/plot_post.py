"""The four plots of a post, each of one predictor's held-out rows, in light or dark: measured × projected, error by source,
order inside groups by name, and what changes gain.
"""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.contracts import frame
from harness.report.plot import LIGHT, Theme, blank, log_ticks, plain
from harness.report.spec import values
from harness.report.table import percent, signed
from harness.score import whatif
from projector.errors import cut

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: The plots of a post by what stands in their file names, with their captions.
PLOTS = {
    "hero": "every run, measured and projected",
    "sources": "error by source of the measurement",
    "what-if": "what a change gains, measured and projected",
    "orders": "the order of alternatives, measured and projected",
}

_FAR = 2.0  # projected over measured, or the reverse: such a row says by how much
_MOST_FAR = 12
_LINE = 0.03  # of the axis: the height of a line of small print
_ROOM = 0.45  # of the axis: enough for a name
_EDGES = 0.5, 2.0  # of an axis of ratios; what lies beyond stands at the edge with its figure
_LETTERS_AN_INCH, _NAME = 14, 34  # of small print; of a run or a source
_TICKS = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)


def titled(figure: Figure, theme: Theme, title: str, words: str) -> None:
    """A title and what a reader needs beside it, flush left, in as many lines as the width asks for."""
    lines = textwrap.wrap(words, int(figure.get_figwidth() * _LETTERS_AN_INCH))
    figure.suptitle(title + "\n" * len(lines), x=0.012, ha="left", fontsize=13, fontweight="bold", color=theme.ink)
    top = 1.0 - 0.36 / figure.get_figheight()
    figure.text(0.012, top, "\n".join(lines), ha="left", va="top", fontsize=9, color=theme.faint, linespacing=1.35)


def hero(rows: pd.DataFrame, theme: Theme = LIGHT) -> Figure | None:
    """Every row measured × projected with its interval, coloured by GPU. None: nothing compared.

    The axes span what was measured, and upwards the intervals. A projection beyond them stands at the edge, and a row
    that is off by more than a factor of two says by how much, unless a worse one stands on the same line.
    """
    known = rows[rows["error"].notna()]
    if known.empty:
        return None
    figure = blank(8.4, 6.3, theme)
    axes = figure.add_subplot()
    plain(axes, theme)
    ends = float(known["measured_tgs"].min()) / 1.4, float(known["measured_tgs"].max()) * 1.4
    axes.fill_between(ends, [0.9 * v for v in ends], [1.1 * v for v in ends], color=theme.band, zorder=0, linewidth=0)
    axes.plot(ends, ends, color=theme.faint, linewidth=0.9, zorder=1)
    spans = known[known["interval_low"].notna()]
    heights = min(ends[0], spans["interval_low"].min() / 1.1), max(ends[1], spans["interval_high"].max() * 1.1)
    axes.vlines(
        spans["measured_tgs"],
        spans["interval_low"],
        spans["interval_high"],
        color=theme.faint,
        linewidth=0.5,
        alpha=0.15,
    )
    parts = sorted(frame.parts(known, ["gpu"]), key=lambda item: -len(item[1]))
    for i, ((gpu,), members) in enumerate(parts):
        colour, marker = theme.mark(i)
        y = members["projected_tgs"].clip(*heights)
        label = f"{gpu or 'not stated'} ({len(members)})"
        axes.scatter(
            members["measured_tgs"],
            y,
            s=17,
            color=colour,
            marker=marker,
            linewidths=0,
            alpha=0.85,
            label=label,
            zorder=3,
        )
    _outliers(axes, known, ends, heights, theme)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=heights)
    log_ticks(*ends, (axes.xaxis,))
    log_ticks(*heights, (axes.yaxis,))
    axes.set_xlabel("measured tokens/s/GPU", fontsize=10, color=theme.ink)
    axes.set_ylabel("projected tokens/s/GPU", fontsize=10, color=theme.ink)
    axes.legend(
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        fontsize=8.5,
        frameon=False,
        labelcolor=theme.ink,
        handletextpad=0.2,
    )
    size = known["error"].abs()
    name = known["predictor"].iloc[0]
    titled(
        figure,
        theme,
        f"{len(known)} training runs, measured and projected",
        f"{name}, held out: median error {percent(float(size.median()))}, mean {percent(float(size.mean()))}. "
        "Line: exact; band: ±10 %; bars: 90 % intervals.",
    )
    return figure


def _outliers(
    axes: Any, known: pd.DataFrame, ends: tuple[float, float], heights: tuple[float, float], theme: Theme
) -> None:
    """The error beside the worst rows, where no worse one has its own, and a triangle at the edge where a projection lies
    beyond it."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    for row in frame.lines(_worst(known)):
        y = min(max(row.projected_tgs, heights[0]), heights[1])
        if y != row.projected_tgs:
            axes.scatter(
                [row.measured_tgs],
                [y],
                s=60,
                marker="^" if y == heights[1] else "v",
                color=theme.wrong,
                clip_on=False,
                zorder=4,
            )
        # On the side of the mark that is away from the crowd along the line, where there is room for a name.
        left = y > row.measured_tgs
        height = math.log(y / heights[0]) / math.log(heights[1] / heights[0])
        if any(abs(height - other) < _LINE for other in taken[left]):
            continue
        taken[left].append(height)
        room = math.log(row.measured_tgs / ends[0]) / math.log(ends[1] / ends[0])
        name = cut(row.run_id, _NAME) if (room if left else 1.0 - room) > _ROOM else ""
        words = (name, signed(row.error, 0)) if left else (signed(row.error, 0), name)
        axes.annotate(
            "  ".join(filter(None, words)),
            (row.measured_tgs, y),
            xytext=(-6 if left else 6, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            fontsize=8,
            color=theme.ink,
        )


def _far(error: pd.Series[Any]) -> pd.Series[bool]:
    return (error > _FAR - 1.0) | (error < 1.0 / _FAR - 1.0)


def _worst(known: pd.DataFrame) -> pd.DataFrame:
    far = known[_far(known["error"])]
    order = np.log1p(far["error"].to_numpy(dtype=float))
    return far.iloc[np.argsort(-np.abs(order), kind="stable")[:_MOST_FAR]]


def sources(rows: pd.DataFrame, theme: Theme = LIGHT, most: int = 24) -> Figure | None:
    """A line a publisher of measurements: every row's projected / measured, the quartiles and the median; the
    largest mean error first. None: nothing compared."""
    known = rows[rows["error"].notna()]
    if known.empty:
        return None
    named = known.assign(publisher=values(known, "publisher").map(_place))
    by = [(name, members["error"]) for (name,), members in frame.parts(named, ["publisher"])]
    ordered = sorted(by, key=lambda item: (-len(item[1]), item[0]))[:most]
    ordered.sort(key=lambda item: (float(item[1].abs().mean()), item[0]))
    figure = blank(8.4, 1.5 + 0.3 * len(ordered), theme)
    axes = figure.add_subplot()
    plain(axes, theme)
    axes.axvspan(0.9, 1.1, color=theme.band, zorder=0, linewidth=0)
    axes.axvline(1.0, color=theme.faint, linewidth=0.9, zorder=1)
    for place, (_, errors) in enumerate(ordered):
        _strip(axes, place, 1.0 + errors.to_numpy(dtype=float), theme)
    axes.set_xscale("log")
    axes.set_xlim(_EDGES[0] / 1.04, _EDGES[1] * 1.04)
    axes.set_xticks(_TICKS, [f"{t:g}×" for t in _TICKS])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(ordered)), [f"{name} ({len(e)})" for name, e in ordered], color=theme.ink, fontsize=9)
    axes.set_ylim(-0.7, len(ordered) - 0.3)
    axes.set_xlabel("projected / measured tokens/s/GPU", fontsize=9, color=theme.ink)
    right = axes.secondary_yaxis("right")
    right.set_yticks(
        range(len(ordered)), [percent(float(e.abs().mean())) for _, e in ordered], color=theme.ink, fontsize=9
    )
    right.tick_params(length=0)
    right.spines["right"].set_visible(False)
    left_out = f" {len(by) - len(ordered)} sources with fewer rows are left out." if len(by) > len(ordered) else ""
    titled(
        figure,
        theme,
        "Error by source of the measurement",
        "A dot is a run, a box the quartiles; right: mean error, held out. Triangles: beyond the axis, with their value."
        + left_out,
    )
    return figure


def _place(publisher: str) -> str:
    """A page of the web by its host, and no name so long that it takes the plot's room."""
    first = publisher.partition("/")[0]
    return first if "." in first and "/" in publisher else cut(publisher, _NAME)


def _strip(axes: Any, place: int, ratios: Any, theme: Theme) -> None:
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    offsets = place + 0.2 * np.sin(2.4 * np.arange(len(ratios)))
    inside = (ratios >= _EDGES[0]) & (ratios <= _EDGES[1])
    alpha = 0.55 if len(ratios) < 100 else 0.3
    axes.scatter(ratios[inside], offsets[inside], s=9, color=theme.right, alpha=alpha, linewidths=0, zorder=3)
    if len(ratios) > 3:
        axes.plot(
            (low, high, high, low, low),
            place + 0.3 * np.array((-1, -1, 1, 1, -1)),
            color=theme.faint,
            linewidth=0.9,
            zorder=4,
        )
    axes.plot((middle, middle), (place - 0.33, place + 0.33), color=theme.wrong, linewidth=1.8, zorder=5)
    for edge, marker, beyond in ((_EDGES[0], "<", ratios < _EDGES[0]), (_EDGES[1], ">", ratios > _EDGES[1])):
        if beyond.any():
            words = ", ".join(f"{r:.2g}×" for r in sorted(ratios[beyond])[-2:])
            axes.plot([edge], [place], marker, color=theme.wrong, markersize=6, zorder=6)
            axes.annotate(
                words,
                (edge, place),
                xytext=(-7 if edge > 1 else 7, 0),
                textcoords="offset points",
                ha="right" if edge > 1 else "left",
                va="center",
                fontsize=7.5,
                color=theme.ink,
            )


def what_if(rows: pd.DataFrame, theme: Theme = LIGHT) -> Figure | None:
    """Measured × projected gain of every pair of runs inside a group. None: no pair that the measurement tells apart."""
    found = whatif.gains(rows)
    if not len(found.measured):
        return None
    figure = blank(6.6, 6.0, theme)
    axes = figure.add_subplot()
    plain(axes, theme)
    x, y = found.measured, found.projected
    high = 1.05 * float(max(x.max(), y.max(), 1.2))
    low, up = float(min(y.min(), 0.9)) / 1.05, high
    axes.plot((1.0, high), (1.0, high), color=theme.faint, linewidth=0.9, zorder=1)
    axes.axhspan(low, 1.0, color=theme.band, zorder=0, linewidth=0, alpha=0.6)
    right, tied = found.right, found.tied
    alpha = 0.75 if len(x) < 200 else 0.4
    for which, (colour, marker), words in (
        (right, (theme.right, "o"), "right order"),
        (~right & ~tied, (theme.wrong, "^"), "wrong order"),
        (tied, (theme.faint, "s"), "projected equal"),
    ):
        if which.any():
            axes.scatter(
                x[which],
                y[which],
                s=13,
                color=colour,
                marker=marker,
                alpha=alpha,
                linewidths=0,
                label=f"{words} ({which.sum()})",
                zorder=3,
            )
    axes.set(xscale="log", yscale="log", xlim=(1.0, high), ylim=(low, up))
    for axis, ends in ((axes.xaxis, (1.0, high)), (axes.yaxis, (low, up))):
        ticks = [
            t for t in (0.25, 0.5, 0.7, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0) if ends[0] <= t <= ends[1]
        ]
        axis.set_ticks(ticks, [f"{t:g}×" for t in ticks])
        axis.set_ticks([], minor=True)
    axes.set_xlabel("measured: the faster over the slower run", fontsize=9, color=theme.ink)
    axes.set_ylabel("projected: the same two", fontsize=9, color=theme.ink)
    axes.legend(loc="upper left", fontsize=8.5, frameon=False, labelcolor=theme.ink)
    share = float((right + 0.5 * tied).mean())
    titled(
        figure,
        theme,
        "What a change gains, measured and projected",
        f"{len(x)} pairs of runs inside {found.groups} groups; {percent(share, 0)} in the right order (equal: half);"
        f" the median gain is off by {percent(found.typical_error)}. Shaded: wrong order.",
    )
    return figure
