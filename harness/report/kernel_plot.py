"""Plots a kernel score: modelled against measured time, and the spread of the errors. matplotlib is imported when drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from harness.kernels.score import Score
from harness.report.plot import BLUE, GREY, LIGHT, blank, compared, grid, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS = tuple(LIGHT.mark(i) for i in range(12))
MOST_POINTS = 1500  # most points of one GPU: more are one blot, and a larger file
ACROSS = 4
TITLES = {
    "gemm": "GEMM",
    "gemm_step": "forward and both gradients of a linear",
    "attention": "attention",
    "grouped": "grouped GEMM",
    "stream": "memory-bound kernels",
}


def scatter(score: Score, kind: str, fit: str) -> Figure | None:
    """Draws modelled over measured microseconds of every row of a kind, a panel a GPU, with the ±10 % band."""
    error = score.error(fit)
    known = np.isfinite(error)
    members = score.members(lambda row: row.gpu, np.array([row.kind == kind for row in score.rows]) & known)
    if not members:
        return None
    across = min(ACROSS, len(members))
    figure = blank(max(4.6, 3.0 * across), 0.7 + 2.7 * -(-len(members) // across))
    for axes, (gpu, where) in zip(grid(figure, len(members), across), members.items(), strict=True):
        measured, modelled = score.measured[where] * 1e6, score.seconds[fit][where] * 1e6
        within = np.abs(modelled / measured - 1.0) <= 0.1
        compared(axes, measured, modelled, within, _thinned(np.arange(len(where))), {"s": 10, "alpha": 0.6})
        axes.set_title(f"{gpu}: {100 * np.abs(error[where]).mean():.1f} % of {len(where)} rows", fontsize=9)
    words = "blue circle = within ±10 %, orange triangle = outside"
    figure.suptitle(f"{TITLES.get(kind, kind)}, {_words(fit)}: {words}", fontsize=11 if across > 2 else 8)
    figure.supxlabel("measured time, µs", fontsize=9)
    figure.supylabel("modelled time, µs", fontsize=9)
    return figure


def histogram(score: Score, fit: str) -> Figure | None:
    """Draws the spread of signed errors, a panel for each kind: shapes of training size before all shapes."""
    error = score.error(fit)
    kinds = [k for k in TITLES if any(r.kind == k and np.isfinite(e) for r, e in zip(score.rows, error, strict=True))]
    if not kinds:
        return None
    figure = blank(max(4.4, 3.4 * len(kinds)), 3.4)
    bins = np.linspace(-50, 50, 51)
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        members = np.array([row.kind == kind for row in score.rows]) & np.isfinite(error)
        for which, colour, label in ((members, "#BBBBBB", "all shapes"), (members & score.large, BLUE, "> 1e10 FLOP")):
            axes.hist(np.clip(100 * error[which], -50, 50), bins=bins, color=colour, label=label)
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.set_title(f"{TITLES[kind]}: {members.sum()} rows, {(members & score.large).sum()} large", fontsize=9)
        axes.set_xlabel("(modelled − measured) / measured, %", fontsize=8)
        axes.yaxis.get_major_locator().set_params(integer=True)
        plain(axes)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.supylabel("rows", fontsize=9)
    figure.suptitle(f"Errors, {_words(fit)} (beyond ±50 % in the last bars)", fontsize=11)
    return figure


def _words(fit: str) -> str:
    return {"heldout": "held out", "shipped": "shipped constants"}.get(fit, fit)


def _thinned(where: Any) -> Any:
    if len(where) <= MOST_POINTS:
        return where
    return np.sort(np.random.default_rng(3).choice(where, MOST_POINTS, replace=False))
