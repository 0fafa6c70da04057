"""What was kept and cut of a log's steps; timers and kernels where the log has them."""

from __future__ import annotations

from collections.abc import Iterator

from harness.report.ingest_view import StepView
from projector.io.table import Line, Table, figure, listed, text

_STEPS = (
    text("steps", 0),
    figure("count", 1),
    figure("iterations", 2, minor=1),
    figure("median s", 3, "{:.6g}".format),
    figure("total s", 4, "{:.6g}".format),
)
_TIMERS = (text("timer", 0), figure("mean seconds a step", 1, "{:.4g}".format))
_KERNELS = (text("kernel", 0), figure("seconds", 1, "{:.4g}".format), figure("calls", 2))
_MOST = 10  # timers and kernels shown


def blocks(view: StepView) -> Iterator[Line | Table]:
    """The table of one run, and under it the interval, timers and kernels."""
    kept = view.seconds[view.reasons == 0]
    numbers = view.iteration[view.reasons == 0]
    inside = _span(int(numbers.min()), int(numbers.max()))
    rows = [("kept", view.kept, inside, view.median, kept.sum())]
    rows += [(f"cut: {c.reason}", c.steps, _span(c.first, c.last), c.median_s, c.total_s) for c in view.cuts]
    note = ""
    if view.low is not None and view.high is not None:
        interval = f"{_s(view.low)} to {_s(view.high)} s ({100 * (view.high - view.low) / view.median:.2g} % wide)"
        note = f"90 % interval of the median: {interval}; mean {_s(view.mean)} s"
    yield listed("", rows, _STEPS, note)
    if view.timers:
        yield listed("", view.timers[:_MOST], _TIMERS)
    if view.shares:
        yield Line("of the traced time: " + ", ".join(f"{what} {share:.1%}" for what, share in view.shares))
    if view.kernels:
        yield listed("Kernels with most time", view.kernels[:_MOST], _KERNELS)


def _s(seconds: float) -> str:
    return f"{seconds:.6g}"


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"
