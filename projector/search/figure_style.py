"""The style of the pictures of searches and sweeps. matplotlib is imported when one is drawn.

Colours are from the colour-blind-safe set of Okabe and Ito (jfly.uni-koeln.de/color), a marker beside each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from projector.io.files import write_figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F", "#F0E442")
MARKERS = "o^sDvPX<>"
GREY = "#B8B8B8"


def figure(title: str, panels: int = 1, height: float = 4.2, width: float | None = None) -> tuple[Any, list[Any]]:
    """Returns a figure and its ``panels`` axes, side by side; sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(width or 5.6 * panels, height), layout="constrained")
    FigureCanvasAgg(drawing)
    drawing.suptitle(title, fontsize=11)
    return drawing, list(drawing.subplots(1, panels, squeeze=False)[0])


def tidy(axes: Any, x: str, y: str, *, doubling: tuple[float, ...] = (), log: bool = False) -> None:
    """Labels ``axes`` and draws a faint grid, with ticks at ``doubling`` values of x; ``log``: of y, with plain numbers."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(doubling) > 1:
        axes.set_xscale("log", base=2)
        axes.set_xticks(doubling, [f"{value:g}" for value in doubling], rotation=45 if len(doubling) > 8 else 0)
        axes.set_xticks([], minor=True)
    if log:
        from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])


def save(figures: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes each figure as ``NAME.png`` into ``folder``; returns the paths."""
    files = [folder / f"{name}.png" for name in figures]
    for file, drawn in zip(files, figures.values(), strict=True):
        write_figure(file, drawn)
    return files
