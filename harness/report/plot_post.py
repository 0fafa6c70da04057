"""The four plots of a post, each of one predictor's held-out rows, in light or dark: projected / measured by GPU and by
source, order inside groups by name, and gains of changes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.contracts import frame
from harness.report.plot import LIGHT, Theme, blank, plain
from harness.report.spec import values
from harness.report.table import percent
from harness.score import whatif
from projector.errors import truncate

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: The plots of a post by what stands in their file names, with their captions.
PLOTS = {
    "hero": "every run, projected over measured",
    "sources": "error by source of the measurement",
    "what-if": "what a change gains, measured and projected",
    "orders": "the order of alternatives, measured and projected",
}

_EDGES = 0.5, 2.0  # ends of an axis of ratios; values beyond are written outside the axis
_OUTSIDE = 1.32  # times an edge: the room for these values
_LETTERS_AN_INCH, _NAME = 14, 34  # letters of small print in an inch; most letters of a run's or a source's name
_GAINS = (0.25, 0.5, 0.7, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
_TICKS = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)


def titled(figure: Figure, theme: Theme, title: str, words: str) -> None:
    """Writes a title and the words that a reader needs with it, flush left, in as many lines as the width asks for."""
    lines = textwrap.wrap(words, int(figure.get_figwidth() * _LETTERS_AN_INCH))
    figure.suptitle(title + "\n" * len(lines), x=0.012, ha="left", fontsize=13, fontweight="bold", color=theme.ink)
    top = 1.0 - 0.36 / figure.get_figheight()
    figure.text(0.012, top, "\n".join(lines), ha="left", va="top", fontsize=9, color=theme.faint, linespacing=1.35)


def hero(rows: pd.DataFrame, theme: Theme = LIGHT) -> Figure | None:
    """Draws a line for each GPU: every row's projected / measured (:func:`_strips`); None where nothing is compared."""
    known = rows[rows["error"].notna()]
    if known.empty:
        return None
    size, name = known["error"].abs(), known["predictor"].iloc[0]
    return _strips(
        {gpu or "not stated": members for (gpu,), members in frame.parts(known, ["gpu"])},
        theme,
        f"{len(known)} training runs: projected over measured, by GPU",
        f"{name}, held out: median error {percent(float(size.median()))}, mean {percent(float(size.mean()))}. ",
    )


def models(rows: pd.DataFrame, theme: Theme = LIGHT) -> Figure | None:
    """Draws a line for each of the models with most rows (:func:`_strips`); None where nothing is compared."""
    return _largest_groups(rows.assign(of=rows["model"]), theme, "Error by model", "models", 40)


def sources(rows: pd.DataFrame, theme: Theme = LIGHT, most: int = 24) -> Figure | None:
    """Draws a line for each of the publishers with most rows (:func:`_strips`); None where nothing is compared."""
    named = rows.assign(of=values(rows, "publisher").map(_short_publisher))
    return _largest_groups(named, theme, "Error by source of the measurement", "sources", most)


def _largest_groups(rows: pd.DataFrame, theme: Theme, title: str, words: str, most: int) -> Figure | None:
    """Draws :func:`_strips` of the ``most`` largest groups by the column ``of``; None where nothing is compared."""
    by = {name or "not stated": members for (name,), members in frame.parts(rows[rows["error"].notna()], ["of"])}
    if not by:
        return None
    largest = sorted(by, key=lambda name: (-len(by[name]), name))[:most]
    left_out = f"{len(by) - len(largest)} {words} with fewer rows are left out. " if len(by) > len(largest) else ""
    return _strips({name: by[name] for name in largest}, theme, title, left_out)


def _strips(groups: Mapping[str, pd.DataFrame], theme: Theme, title: str, words: str) -> Figure:
    """Draws a line a group, the largest mean error on top: every row's projected / measured, quartiles and median, and
    the range of the ratio inside the 90 % interval of the median row."""
    ordered = sorted(groups.items(), key=lambda item: (float(item[1]["error"].abs().mean()), item[0]))
    figure = blank(8.4, 1.6 + 0.3 * len(ordered), theme)
    axes = figure.add_subplot()
    plain(axes, theme)
    axes.axvspan(0.9, 1.1, color=theme.band, zorder=0, linewidth=0)
    axes.axvline(1.0, color=theme.faint, linewidth=0.9, zorder=1)
    for place, (_, members) in enumerate(ordered):
        _strip(axes, place, 1.0 + members["error"].to_numpy(dtype=float), theme)
        if ends := _allowed(members):
            axes.plot(np.clip(ends, *_EDGES), (place, place), "|-", color=theme.faint, linewidth=0.9, zorder=2)
    axes.set_xscale("log")
    axes.set_xlim(_EDGES[0] / _OUTSIDE, _EDGES[1] * _OUTSIDE)
    axes.set_xticks(_TICKS, [f"{t:g}×" for t in _TICKS])
    axes.set_xticks([], minor=True)
    places = range(len(ordered))
    axes.set_yticks(places, [f"{name} ({len(rows)})" for name, rows in ordered], color=theme.ink, fontsize=9)
    axes.set_ylim(-0.7, len(ordered) - 0.3)
    axes.set_xlabel("projected / measured tokens/s/GPU", fontsize=9, color=theme.ink)
    right = axes.secondary_yaxis("right")
    means = [percent(float(rows["error"].abs().mean())) for _, rows in ordered]
    right.set_yticks(places, means, color=theme.ink, fontsize=9)
    right.tick_params(length=0)
    right.spines["right"].set_visible(False)
    words += "A dot is a run, a box the quartiles, a thin bar what the 90 % interval of the usual run allows; "
    titled(figure, theme, title, words + "right: mean error, held out. Triangles: beyond the axis, the two farthest.")
    return figure


def _allowed(rows: pd.DataFrame) -> tuple[float, float] | None:
    """Returns the ends of projected / measured that the 90 % interval of the median row allows; None: no row has one."""
    spans = rows[rows["interval_low"].notna()]
    if spans.empty:
        return None
    low, high = (float((spans["projected_tgs"] / spans[f"interval_{end}"]).median()) for end in ("high", "low"))
    return low, high


def _short_publisher(publisher: str) -> str:
    """Returns the host of a web page's publisher, and cuts other names to the room that the plot has."""
    first = publisher.partition("/")[0]
    return first if "." in first and "/" in publisher else truncate(publisher, _NAME)


def _strip(axes: Any, place: int, ratios: Any, theme: Theme) -> None:
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    offsets = place + 0.2 * np.sin(2.4 * np.arange(len(ratios)))
    inside = (ratios >= _EDGES[0]) & (ratios <= _EDGES[1])
    alpha = 0.55 if len(ratios) < 100 else 0.3
    axes.scatter(ratios[inside], offsets[inside], s=9, color=theme.right, alpha=alpha, linewidths=0, zorder=3)
    if len(ratios) > 3:
        ends = place + 0.3 * np.array((-1, -1, 1, 1, -1))
        axes.plot((low, high, high, low, low), ends, color=theme.faint, linewidth=0.9, zorder=4)
    axes.plot((middle, middle), (place - 0.33, place + 0.33), color=theme.wrong, linewidth=1.8, zorder=5)
    for edge, marker, beyond in ((_EDGES[0], "<", np.sort(ratios)[:2]), (_EDGES[1], ">", np.sort(ratios)[-2:])):
        way = 1 if edge > 1 else -1
        words = ", ".join(f"{r:.2g}×" for r in beyond if way * r > way * edge)
        if words:
            at = edge * 1.02**way
            axes.plot([at], [place], marker, color=theme.wrong, markersize=6, zorder=6, clip_on=False)
            look = {"textcoords": "offset points", "ha": "left", "va": "center", "fontsize": 7, "color": theme.ink}
            axes.annotate(
                words, (at, place), xytext=(5, 0 if edge > 1 else 7), **look
            )  # names of sources stand on the left


def what_if(rows: pd.DataFrame, theme: Theme = LIGHT) -> Figure | None:
    """Draws the projected over the measured gain of every pair inside a group; None where no pair can be told apart."""
    gains = whatif.gains(rows)
    if not len(gains.measured):
        return None
    figure = blank(6.6, 6.0, theme)
    axes = figure.add_subplot()
    plain(axes, theme)
    x, y = gains.measured, gains.projected
    high = 1.05 * float(max(x.max(), y.max(), 1.2))
    low, up = float(min(y.min(), 0.9)) / 1.05, high
    axes.plot((1.0, high), (1.0, high), color=theme.faint, linewidth=0.9, zorder=1)
    axes.axhspan(low, 1.0, color=theme.band, zorder=0, linewidth=0, alpha=0.6)
    right, tied = gains.right, gains.tied
    look: dict[str, Any] = {"s": 13, "alpha": 0.75 if len(x) < 200 else 0.4, "linewidths": 0, "zorder": 3}
    for which, (colour, marker), words in (
        (right, (theme.right, "o"), "right order"),
        (~right & ~tied, (theme.wrong, "^"), "wrong order"),
        (tied, (theme.faint, "s"), "projected equal"),
    ):
        if which.any():
            axes.scatter(x[which], y[which], color=colour, marker=marker, label=f"{words} ({which.sum()})", **look)
    axes.set(xscale="log", yscale="log", xlim=(1.0, high), ylim=(low, up))
    for axis, ends in ((axes.xaxis, (1.0, high)), (axes.yaxis, (low, up))):
        ticks = _spaced_ticks(ends)
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
        f"{len(x)} pairs of runs inside {gains.groups} groups; {percent(share, 0)} in the right order (equal: half);"
        f" the median gain is off by {percent(gains.typical_error)}. Shaded: wrong order.",
    )
    return figure


def _spaced_ticks(ends: tuple[float, float]) -> list[float]:
    """Returns the ticks of a logarithmic axis whose labels do not touch: at least a twentieth of the axis apart."""
    ticks: list[float] = []
    for tick in _GAINS:
        far = not ticks or np.log(tick / ticks[-1]) >= np.log(ends[1] / ends[0]) / 20
        if ends[0] <= tick <= ends[1] and far:
            ticks.append(tick)
    return ticks
