"""Draws history as a figure: error, coverage, order, and rows that broke, version after version. matplotlib when drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.history.series import Figures, Series, figures
from harness.report.plot import BLUE, GREY, VERMILION, blank, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREEN = "#009E73"
MOST = 4  # series side by side
_LABELS = 24  # versions that are named on the axis


def draw(found: Sequence[Series], tolerance: float, last: int) -> Figure | None:
    """Draws a column for each of the first :data:`MOST` series, a panel for each figure; None where nothing is recorded."""
    shown = [series for series in found if series.versions][:MOST]
    if not shown:
        return None
    figure = blank(max(5.2, 4.4 * len(shown)), 8.2)
    panels = figure.subplots(4, len(shown), squeeze=False, sharex="col")
    for column, series in enumerate(shown):
        labels = [version.recording.label for version in series.versions][-last:]
        _column(panels[:, column], figures(series.versions, tolerance)[-last:], tolerance)
        panels[0, column].set_title(series.title, fontsize=9)
        every = -(-len(labels) // _LABELS)
        panels[3, column].set_xticks(range(0, len(labels), every), labels[::every], rotation=60, ha="right", fontsize=7)
    return figure


def _column(panels: Any, shown: Sequence[Figures], tolerance: float) -> None:
    error, share, order, rows = panels
    _lines(error, "mean |error|, %", {name: _percents(shown, name) for name in ("macro", "plain", "median")})
    shares = {"coverage": "coverage", "inside the interval": "inside"}
    _lines(share, "rows, %", {words: _percents(shown, name) for words, name in shares.items()})
    _lines(order, "Kendall's tau-b", {"tau-b": [f["tau"] for f in shown]})
    share.set_ylim(top=102)
    places, broken, words = (
        range(len(shown)),
        [f["broken"] for f in shown],
        f"broken by over {100 * tolerance:g} points",
    )
    rows.bar(places, broken, color=VERMILION, width=0.7, label=words)
    rows.bar(places, [f["lost"] for f in shown], bottom=broken, color=GREY, width=0.7, label="lost")
    rows.set_ylabel("rows", fontsize=8)
    rows.yaxis.get_major_locator().set_params(integer=True)
    rows.set_ylim(0, max(1.0, 1.25 * max(f["broken"] + f["lost"] for f in shown)))
    rows.legend(fontsize=7, frameon=False, loc="upper left")
    plain(rows)
    for axes in (error, share, order):
        for place in (i for i, f in enumerate(shown) if f["broken"] or f["lost"]):
            axes.axvline(place, color=VERMILION, linewidth=0.8, alpha=0.5)


def _lines(axes: Any, label: str, lines: dict[str, list[float | None]]) -> None:
    for (name, values), colour in zip(lines.items(), (BLUE, VERMILION, GREEN), strict=False):
        drawn = [float("nan") if value is None else value for value in values]
        axes.plot(range(len(drawn)), drawn, color=colour, marker="o", markersize=3, linewidth=1.2, label=name)
    axes.set_ylabel(label, fontsize=8)
    axes.legend(fontsize=7, frameon=False)
    plain(axes)


def _percents(versions: Sequence[Figures], name: str) -> list[float | None]:
    values = (f[name] for f in versions)
    return [None if value is None else 100.0 * value for value in values]
