"""Further plots of the rows for print: order inside groups, error by parallelism and framework, memory, parts of the
step. matplotlib is imported when drawn; figure, axes style and colours are those of :mod:`harness.report.plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.contracts import frame
from harness.contracts.runs import BREAKDOWN
from harness.report.plot import BLUE, GREY, LIGHT, PALE, VERMILION, Theme, blank, grid, plain
from harness.report.plot_post import titled
from harness.report.spec import DEGREES, NOT_STATED, order, values
from harness.report.table import number, percent
from harness.score import ranking
from harness.score.ranking import GroupRanking
from projector.errors import truncate

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

GROUPS, _ORDERS_ACROSS = 6, 2
FEWEST, MOST = 4, 12  # runs of a group: fewer make no order, more cannot be read
_LETTERS = 40


def chosen(rows: pd.DataFrame) -> list[GroupRanking]:
    """Returns the largest groups that can be read, of many sources, whose runs differ in something a projector sees."""
    groups = [g for g in ranking.group_rankings(rows) if g.stated and FEWEST <= g.rows <= MOST]
    source = dict(zip(rows["group"], values(rows, "publisher"), strict=True))
    count: dict[str, int] = {}
    ordered = []
    for group in sorted(groups, key=lambda g: (-g.rows, g.group)):
        turn = count[source[group.group]] = count.get(source[group.group], 0) + 1
        ordered.append((turn, group))
    return [group for _, group in sorted(ordered, key=lambda item: item[0])[:GROUPS]]


def orders(rows: pd.DataFrame, theme: Theme = LIGHT) -> Figure | None:
    """Draws a panel for each of the :func:`chosen` groups; None where there is none."""
    groups = chosen(rows)
    if not groups:
        return None
    down = -(-len(groups) // _ORDERS_ACROSS)
    tallest = [max(g.rows for g in groups[i * _ORDERS_ACROSS : (i + 1) * _ORDERS_ACROSS]) for i in range(down)]
    figure = blank(11.0, 1.0 + sum(0.75 + 0.21 * n for n in tallest), theme)
    panels = grid(figure, len(groups), _ORDERS_ACROSS, height_ratios=[n + 3 for n in tallest])
    for axes, group, most in zip(panels, groups, np.repeat(tallest, _ORDERS_ACROSS).tolist(), strict=False):
        _slope(axes, rows[((rows["group"] == group.group) & rows["error"].notna()).to_numpy(dtype=bool)], most, theme)
        tau = number(group.tau).replace("-", "−")
        axes.set_title(
            f"{group.group}\ntau-b {tau}, running the projected best costs {percent(group.regret)}",
            fontsize=9,
            color=theme.ink,
            loc="left",
        )
    titled(
        figure,
        theme,
        "The order of alternatives, measured and projected",
        f"Held out, tokens/s/GPU; the largest groups of {FEWEST} to {MOST} runs, one of a source before a second. "
        "Dashed: on the wrong side of another run.",
    )
    return figure


def _slope(axes: Any, rows: pd.DataFrame, most: int, theme: Theme) -> None:
    axes.set_facecolor(theme.page)
    ordered = rows.sort_values("measured_tgs", ascending=False, kind="stable")
    real, modelled = ordered["measured_tgs"].to_numpy(dtype=float), ordered["projected_tgs"].to_numpy(dtype=float)
    noise = np.maximum(ranking.NOISE, ordered["rel_std"].fillna(0.0).to_numpy(dtype=float))
    apart = np.abs(np.log(real[:, None] / real)) > np.log1p(np.maximum(noise[:, None], noise))
    wrong = (apart & ((real[:, None] - real) * (modelled[:, None] - modelled) < 0.0)).any(axis=1)
    equal = np.abs(modelled[:, None] / modelled - 1.0) <= ranking.SAME
    # Runs that are projected equal share the mean of their places.
    place = (modelled > modelled[:, None] * (1.0 + ranking.SAME)).sum(axis=1) + (equal.sum(axis=1) - 1) / 2
    for i, name in enumerate(_short(ordered["run_id"].tolist())):
        colour, style = (theme.wrong, "--") if wrong[i] else (theme.right, "-")
        axes.plot((0, 1), (i, place[i]), style, color=colour, marker="o", markersize=3, linewidth=1.1)
        axes.text(-0.04, i, f"{name}  {_figure(real[i])}", ha="right", va="center", fontsize=7.5, color=theme.ink)
    for at in np.unique(place):
        same = np.flatnonzero(place == at)
        text = _figure(modelled[same[0]]) + (f"  ({len(same)} equal)" if len(same) > 1 else "")
        axes.text(1.04, at, text, ha="left", va="center", fontsize=7.5, color=theme.ink)
    axes.set(xlim=(-1.75, 1.55), ylim=(most - 0.5, -0.5))
    axes.set_axis_off()


def _figure(tgs: float) -> str:
    return f"{tgs:,.0f}" if tgs >= 100.0 else f"{tgs:.3g}"


def _short(ids: Sequence[str]) -> list[str]:
    """Returns the names without their common first words."""
    words = [name.split("-") for name in ids]
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False)))
    return [truncate("-".join(parts[shared:]) or name, _LETTERS) for name, parts in zip(ids, words, strict=True)]


#: The colours of the parts: seven of Okabe and Ito's eight, two greys and a brown.
PARTS = dict(
    zip(
        BREAKDOWN,
        ("#0072B2", "#999999", "#D0D0D0", "#E69F00", "#D55E00", "#56B4E9", "#009E73", "#CC79A7", "#F0E442", "#5B4636"),
        strict=True,
    )
)
KINDS = {"allocated": LIGHT.mark(0), "reserved": LIGHT.mark(5), "device": LIGHT.mark(2), "": LIGHT.mark(7)}
MOST_BARS, ACROSS = 30, 3
_TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


def errors_by_parallelism(rows: pd.DataFrame, title: str) -> Figure | None:
    """Draws a panel for each degree (TP, PP, EP, CP, the sharding of the data-parallel state), and one for frameworks;
    None where nothing is compared."""
    kinds = {**{key: words for key, (words, _) in DEGREES.items()}, "framework": "framework"}
    rows = rows[rows["error"].notna()]
    if rows.empty:
        return None
    split = [frame.parts(rows.assign(of=values(rows, key)), ["of"]) for key in kinds]
    lines = [sorted(parts, key=lambda item: order(item[0][0].replace(NOT_STATED, "")), reverse=True) for parts in split]
    starts = range(0, len(kinds), ACROSS)
    heights = [max(len(groups) for groups in lines[i : i + ACROSS]) for i in starts]
    figure = blank(3.9 * ACROSS, 0.6 + sum(0.9 + 0.24 * h for h in heights))
    panels = grid(figure, len(kinds), ACROSS, height_ratios=[h + 3 for h in heights])
    for axes, name, groups in zip(panels, kinds.values(), lines, strict=True):
        ratios = {of: 1.0 + members["error"].to_numpy(dtype=float) for (of,), members in groups}
        _boxes(axes, ratios)
        axes.set_title(name, fontsize=10)
    figure.suptitle(title, fontsize=11)
    figure.supxlabel("projected / measured tokens/s/GPU (band: ±10 %; box: quartiles; orange: median)", fontsize=9)
    return figure


def _boxes(axes: Any, ratios: Mapping[str, Any]) -> None:
    plain(axes)
    axes.axvspan(0.9, 1.1, color=PALE, zorder=0)
    axes.axvline(1.0, color=GREY, linewidth=0.8, zorder=1)
    grey, median = {"color": "#777777", "linewidth": 0.9}, {"color": VERMILION, "linewidth": 1.6}
    lines = {"boxprops": grey, "whiskerprops": grey, "capprops": grey, "medianprops": median}
    box = {"positions": range(len(ratios)), "widths": 0.6, "showfliers": False, "manage_ticks": False, "zorder": 4}
    axes.boxplot(list(ratios.values()), orientation="horizontal", **box, **lines)
    for i, points in enumerate(ratios.values()):
        offsets = i + 0.22 * np.sin(2.4 * np.arange(len(points)))
        axes.scatter(points, offsets, s=7, color=BLUE, alpha=0.55 if len(points) < 100 else 0.3, linewidths=0, zorder=3)
    low, high = min(r.min() for r in ratios.values()), max(r.max() for r in ratios.values())
    ends = min(0.8, low) / 1.08, max(1.25, high) * 1.08
    axes.set_xscale("log")
    axes.set_xticks(_TICKS, [f"{t:g}×" for t in _TICKS])
    axes.set_xticks([], minor=True)
    axes.set_xlim(*ends)
    axes.set_yticks(range(len(ratios)), [f"{m} ({len(points)})" for m, points in ratios.items()])
    axes.set_ylim(-0.7, len(ratios) - 0.3)


def memory(rows: pd.DataFrame, title: str) -> Figure | None:
    """Draws projected over measured peak GiB, a mark for each kind of memory measured; None where no row has both."""
    known = rows.dropna(subset=["measured_memory_gib", "projected_memory_gib"])
    if known.empty:
        return None
    figure = blank(5.2, 5.2)
    axes = figure.add_subplot()
    plain(axes)
    high = 1.06 * float(known[["measured_memory_gib", "projected_memory_gib"]].to_numpy().max())
    axes.fill_between((0, high), (0, 0.9 * high), (0, 1.1 * high), color=PALE, zorder=0)
    axes.plot((0, high), (0, high), color=GREY, linewidth=0.8, zorder=1)
    for (kind,), members in frame.parts(known, ["memory_kind"]):
        colour, marker = KINDS.get(kind, KINDS[""])
        x, y = members["measured_memory_gib"], members["projected_memory_gib"]
        label = f"{kind or 'not stated'} ({len(members)})"
        axes.scatter(x, y, s=18, color=colour, marker=marker, linewidths=0, alpha=0.8, label=label)
    axes.set(xlim=(0, high), ylim=(0, high), xlabel="measured peak, GiB", ylabel="projected peak, GiB")
    axes.set_aspect("equal")
    axes.legend(title="measured as", fontsize=8, title_fontsize=8, frameon=False, loc="upper left")
    axes.set_title(f"{title} (band: ±10 %)", fontsize=11)
    return figure


def steps(rows: pd.DataFrame, title: str) -> Figure | None:
    """Draws a bar a model: the mean share of each part of the projected step; None where no predictor gave parts."""
    parted = rows[rows[list(BREAKDOWN)].notna().any(axis=1) & (rows["projected_step_seconds"] > 0.0)]
    if parted.empty:
        return None
    groups = sorted(frame.parts(parted, ["model"]), key=lambda item: len(item[1]))[-MOST_BARS:]
    figure = blank(7.4, 1.6 + 0.23 * len(groups))
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    ends = np.zeros(len(groups))
    for part in BREAKDOWN:
        shares = [100.0 * (g[part].fillna(0.0) / g["projected_step_seconds"]).mean() for _, g in groups]
        if not any(shares):
            continue
        name = {"bubble_s": "pipeline bubble", "dp_s": "data parallel"}.get(part, _name(part))
        axes.barh(range(len(groups)), shares, left=ends, height=0.78, color=PARTS[part], label=name, linewidth=0)
        ends = ends + shares
    axes.set_yticks(range(len(groups)), [f"{m or 'not stated'} ({len(g)})" for (m,), g in groups], fontsize=8)
    axes.set(xlim=(0, 100), ylim=(-0.6, len(groups) - 0.4))
    axes.set_xlabel("share of the projected step, %", fontsize=9)
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=11)
    return figure


def _name(part: str) -> str:
    short = part.removesuffix("_s")
    return short.upper() if len(short) == 2 else short
