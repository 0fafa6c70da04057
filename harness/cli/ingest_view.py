"""The table and the plot of the steps of one ingested log: which were kept, which were cut, and why."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from harness.evidence.ingest.logs.build import timers_of
from harness.evidence.ingest.logs.logged import Logged
from harness.evidence.ingest.report import LogRun
from harness.evidence.ingest.steady import REASONS
from harness.report import plot
from harness.report.spec import tabled
from projector.io.table import Line, Table

_MOST = 10  # timers and kernels shown


def blocks(log: LogRun) -> Iterator[Line | Table]:
    """Yields the table of one run whose steps were measured, and under it the interval, timers and kernels."""
    state, record, scale = log.state, log.record, log.scale
    assert state is not None
    numbers = record.iteration[state.reasons == 0]
    inside = _span(int(numbers.min()), int(numbers.max()))
    total = (record.value * scale)[state.reasons == 0].sum()
    rows = [("kept", state.kept, inside, state.value * scale, total)]
    rows += [
        (f"cut: {cut.reason}", cut.steps, _span(cut.first, cut.last), cut.median * scale, cut.total * scale)
        for cut in state.cuts
    ]
    note = ""
    if state.low is not None and state.high is not None:
        median, low, high = state.value * scale, state.low * scale, state.high * scale
        interval = f"{_s(low)} to {_s(high)} s ({100 * (high - low) / median:.2g} % wide)"
        note = f"90 % interval of the median: {interval}; mean {_s(state.mean * scale)} s"
    yield tabled("steps", rows, note=note)
    if timers := timers_of(record):
        yield tabled("timers", timers[:_MOST])
    kernels = record.kernels
    if kernels is not None and kernels.span_s:
        parts = (("busy", kernels.busy_s), ("communication", kernels.communication_s), ("exposed", kernels.exposed_s))
        shares = (f"{what} {seconds / kernels.span_s:.1%}" for what, seconds in parts)
        yield Line(f"of the traced time: {', '.join(shares)}")
    if kernels is not None and kernels.top:
        yield tabled("top_kernels", kernels.top[:_MOST])


def _s(seconds: float) -> str:
    return f"{seconds:.6g}"


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


_MOST_POINTS = 6000  # most points of one series; a longer one is drawn in even strides
_SPARSE = 3  # times the median distance, on average: beyond, an axis of iterations would be mostly gaps


def png(log: LogRun) -> bytes:
    """Returns the picture's bytes. Steps far above the rest are drawn at the upper edge, so that the steady state is
    seen; where iterations repeat (restarts) or leave gaps, steps stand in the order of the log."""
    state, record = log.state, log.record
    assert state is not None
    values, median = record.value * log.scale, state.value * log.scale
    figure = plot.blank(9, 4.5)
    axes = figure.add_subplot()
    # Twice the kept range above the median, at least a fifth of it
    ceiling = float(median + max(2 * (values[state.reasons == 0].max() - median), 0.2 * median))
    places, label = _places(record)
    for start in np.flatnonzero(np.diff(record.segment)) + 1:
        axes.axvline(places[start] - 0.5, color=plot.GREY, linewidth=0.8, linestyle=":")
    for code, name in enumerate(REASONS):
        where = np.flatnonzero(state.reasons == code)
        if not len(where):
            continue
        where = where[:: -(-len(where) // _MOST_POINTS)]
        colour, marker = plot.LIGHT.mark(code) if code else (plot.BLUE, ".")
        count = int((state.reasons == code).sum())
        words = f"{name} ({count})" if code else f"kept ({count})"
        shown = np.minimum(values[where], ceiling)
        axes.plot(places[where], shown, marker, color=colour, label=words, markersize=4, linestyle="none")
    axes.axhline(median, color=plot.BLUE, linewidth=1, label=f"median {median:.5g} s")
    if state.low is not None and state.high is not None:
        axes.axhspan(
            state.low * log.scale,
            state.high * log.scale,
            color=plot.BLUE,
            alpha=0.15,
            linewidth=0,
            label="90 % interval",
        )
    above = int((values > ceiling).sum())
    edge = f"; {above} of {len(values)} steps are slower and drawn at the upper edge" if above else ""
    axes.set_title(f"{log.run.id} ({log.dialect}){edge}", fontsize=10, loc="left")
    axes.set(xlabel=label, ylabel="seconds per step")
    plot.plain(axes)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return plot.png(figure)


def _places(record: Logged) -> tuple[npt.NDArray[np.int64], str]:
    """Returns the places of the steps on the axis, and the axis' label."""
    starts = int(record.segment[-1] - record.segment[0]) + 1
    gaps = np.diff(record.iteration)
    usual = max(float(np.median(gaps)), 1.0) if len(gaps) else 1.0
    if starts == 1 and not (len(gaps) and record.iteration[-1] - record.iteration[0] > _SPARSE * usual * len(gaps)):
        return record.iteration, "iteration"
    first, last = int(record.iteration.min()), int(record.iteration.max())
    restarts = f"; dotted: {starts} starts" if starts > 1 else ""
    return np.arange(1, len(record.iteration) + 1), f"logged step (iterations {first} to {last}{restarts})"
