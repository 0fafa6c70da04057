"""A log's step times over iterations as PNG: what was kept, what was cut and why, the median and its interval."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.report import plot
from harness.report.ingest_view import StepView

_MOST_POINTS = 6000  # of one series; a longer one is drawn in even strides
_SPARSE = 3  # times the usual distance, on average: beyond it, an axis of iterations would be mostly gaps


def png(view: StepView) -> bytes:
    """The picture's bytes. Steps far above the rest are drawn at the upper edge, so that the steady state is seen; where
    iterations repeat (restarts) or leave gaps, steps stand in the order of the log."""
    figure = plot.blank(9, 4.5)
    axes = figure.add_subplot()
    ceiling = _ceiling(view)
    places, label = _places(view)
    for start in np.flatnonzero(np.diff(view.segment)) + 1 if len(view.segment) else ():
        axes.axvline(places[start] - 0.5, color=plot.GREY, linewidth=0.8, linestyle=":")
    for code, name in enumerate(view.names):
        where = np.flatnonzero(view.reasons == code)
        if not len(where):
            continue
        where = where[:: -(-len(where) // _MOST_POINTS)]
        colour, marker = plot.LIGHT.mark(code) if code else (plot.BLUE, ".")
        count = int((view.reasons == code).sum())
        words = f"{name} ({count})" if code else f"kept ({count})"
        shown = np.minimum(view.seconds[where], ceiling)
        axes.plot(places[where], shown, marker, color=colour, label=words, markersize=4, linestyle="none")
    axes.axhline(view.median, color=plot.BLUE, linewidth=1, label=f"median {view.median:.5g} s")
    if view.low is not None and view.high is not None:
        axes.axhspan(view.low, view.high, color=plot.BLUE, alpha=0.15, linewidth=0, label="90 % interval")
    above = int((view.seconds > ceiling).sum())
    edge = f"; {above} of {len(view.seconds)} steps are slower and drawn at the upper edge" if above else ""
    axes.set_title(f"{view.id} ({view.dialect}){edge}", fontsize=10, loc="left")
    axes.set(xlabel=label, ylabel="seconds per step")
    plot.plain(axes)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return plot.png(figure)


def _places(view: StepView) -> tuple[npt.NDArray[np.int64], str]:
    """Where the steps stand, and what the axis is called."""
    starts = int(view.segment[-1] - view.segment[0]) + 1 if len(view.segment) else 1
    gaps = np.diff(view.iteration)
    usual = max(float(np.median(gaps)), 1.0) if len(gaps) else 1.0
    if starts == 1 and not (len(gaps) and view.iteration[-1] - view.iteration[0] > _SPARSE * usual * len(gaps)):
        return view.iteration, "iteration"
    first, last = int(view.iteration.min()), int(view.iteration.max())
    told = f"; dotted: {starts} starts" if starts > 1 else ""
    return np.arange(1, len(view.iteration) + 1), f"logged step (iterations {first} to {last}{told})"


def _ceiling(view: StepView) -> float:
    """Twice the kept range above the median, at least a fifth of it."""
    kept = view.seconds[view.reasons == 0]
    return float(view.median + max(2 * (kept.max() - view.median), 0.2 * view.median))
