"""How a projection orders the runs of a group: measured on the left by name, projected on the right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.report.plot import LIGHT, Theme, blank, grid
from harness.report.plot_post import titled
from harness.report.spec import values
from harness.report.table import number, percent
from harness.score import ranking
from harness.score.ranking import GroupRanking
from projector.errors import cut

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

GROUPS, ACROSS = 6, 2
FEWEST, MOST = 4, 12  # runs of a group: fewer have no order to speak of, more cannot be read
_LETTERS = 40


def chosen(rows: pd.DataFrame) -> list[GroupRanking]:
    """The largest groups that can be read, of as many sources as there are; runs that differ in nothing that a projector
    sees have no order to find."""
    found = [g for g in ranking.group_rankings(rows) if g.stated and FEWEST <= g.rows <= MOST]
    source = dict(zip(rows["group"], values(rows, "publisher"), strict=True))
    turn: dict[str, int] = {}
    ordered = []
    for group in sorted(found, key=lambda g: (-g.rows, g.group)):
        nth = turn[source[group.group]] = turn.get(source[group.group], 0) + 1
        ordered.append((nth, group))
    return [group for _, group in sorted(ordered, key=lambda item: item[0])[:GROUPS]]


def orders(rows: pd.DataFrame, theme: Theme = LIGHT) -> Figure | None:
    """A panel each of the :func:`chosen` groups. None: there is none."""
    groups = chosen(rows)
    if not groups:
        return None
    down = -(-len(groups) // ACROSS)
    tallest = [max(g.rows for g in groups[i * ACROSS : (i + 1) * ACROSS]) for i in range(down)]
    figure = blank(11.0, 1.0 + sum(0.75 + 0.21 * n for n in tallest), theme)
    panels = grid(figure, len(groups), ACROSS, height_ratios=[n + 3 for n in tallest])
    for axes, group, most in zip(panels, groups, np.repeat(tallest, ACROSS).tolist(), strict=False):
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
    """Names without what all of them begin with, up to a word."""
    words = [name.split("-") for name in ids]
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False)))
    return [cut("-".join(parts[shared:]) or name, _LETTERS) for name, parts in zip(ids, words, strict=True)]
