"""The steps of one ingested log as plain data, for the table and the plot of the steps that were cut, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

import numpy as np
import numpy.typing as npt

from harness.report import plot
from harness.report.spec import tabled
from projector.dataclass import dataclass
from projector.io.table import Line, Table

#: Steps cut for one reason: the reason, their number, the first and the last iteration, median and total seconds.
Cut = tuple[str, int, int, int, float, float]


@dataclass(frozen=True, kw_only=True)
class StepView:
    """The steps of one run. ``reasons``: per step an index of ``names``, 0 for kept. ``timers``: (name, mean seconds a
    step). ``low``, ``high``: 90 % interval of the median; None for fewer than three steps. ``kernels``: (name, seconds,
    calls) of a trace, and ``shares``: (part, share of the traced time). ``segment`` counts the starts of the job, a step
    each; empty: one start."""

    id: str
    dialect: str
    iteration: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    reasons: npt.NDArray[np.uint8]
    names: Sequence[str]
    median: float
    mean: float
    low: float | None
    high: float | None
    kept: int
    cuts: tuple[Cut, ...]
    timers: tuple[tuple[str, float], ...] = ()
    kernels: tuple[tuple[str, float, int], ...] = ()
    shares: tuple[tuple[str, float], ...] = ()
    segment: npt.NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))


_MOST = 10  # timers and kernels shown


def blocks(view: StepView) -> Iterator[Line | Table]:
    """Yields the table of one run, and under it the interval, timers and kernels."""
    seconds = view.seconds[view.reasons == 0]
    numbers = view.iteration[view.reasons == 0]
    inside = _span(int(numbers.min()), int(numbers.max()))
    rows = [("kept", view.kept, inside, view.median, seconds.sum())]
    rows += [(f"cut: {why}", steps, _span(first, last), mid, all_) for why, steps, first, last, mid, all_ in view.cuts]
    note = ""
    if view.low is not None and view.high is not None:
        interval = f"{_s(view.low)} to {_s(view.high)} s ({100 * (view.high - view.low) / view.median:.2g} % wide)"
        note = f"90 % interval of the median: {interval}; mean {_s(view.mean)} s"
    yield tabled("steps", rows, note=note)
    if view.timers:
        yield tabled("timers", view.timers[:_MOST])
    if view.shares:
        yield Line("of the traced time: " + ", ".join(f"{what} {share:.1%}" for what, share in view.shares))
    if view.kernels:
        yield tabled("top_kernels", view.kernels[:_MOST])


def _s(seconds: float) -> str:
    return f"{seconds:.6g}"


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


_MOST_POINTS = 6000  # most points of one series; a longer one is drawn in even strides
_SPARSE = 3  # times the median distance, on average: beyond, an axis of iterations would be mostly gaps


def png(view: StepView) -> bytes:
    """Returns the picture's bytes. Steps far above the rest are drawn at the upper edge, so that the steady state is
    seen; where iterations repeat (restarts) or leave gaps, steps stand in the order of the log."""
    figure = plot.blank(9, 4.5)
    axes = figure.add_subplot()
    # Twice the kept range above the median, at least a fifth of it
    seconds = view.seconds[view.reasons == 0]
    ceiling = float(view.median + max(2 * (seconds.max() - view.median), 0.2 * view.median))
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
    """Returns the places of the steps on the axis, and the axis' label."""
    starts = int(view.segment[-1] - view.segment[0]) + 1 if len(view.segment) else 1
    gaps = np.diff(view.iteration)
    usual = max(float(np.median(gaps)), 1.0) if len(gaps) else 1.0
    if starts == 1 and not (len(gaps) and view.iteration[-1] - view.iteration[0] > _SPARSE * usual * len(gaps)):
        return view.iteration, "iteration"
    first, last = int(view.iteration.min()), int(view.iteration.max())
    restarts = f"; dotted: {starts} starts" if starts > 1 else ""
    return np.arange(1, len(view.iteration) + 1), f"logged step (iterations {first} to {last}{restarts})"
