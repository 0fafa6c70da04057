"""What was kept and cut of a log's steps; timers and kernels where the log has them."""

from __future__ import annotations

from collections.abc import Iterator

from harness.report.ingest_view import StepView
from projector.io.table import Column, Line, Table

_STEPS = (
    Column("steps", numeric=False),
    Column("count"),
    Column("iterations", minor=1),
    *map(Column, ("median s", "total s")),
)
_TIMERS = (Column("timer", numeric=False), Column("mean seconds a step"))
_KERNELS = (Column("kernel", numeric=False), *map(Column, ("seconds", "calls")))
_MOST = 10  # timers and kernels shown


def blocks(view: StepView) -> Iterator[Line | Table]:
    """The table of one run, and under it the interval, timers and kernels."""
    kept = view.seconds[view.reasons == 0]
    numbers = view.iteration[view.reasons == 0]
    inside = _span(int(numbers.min()), int(numbers.max()))
    rows = [("kept", f"{view.kept}", inside, _s(view.median), _s(kept.sum()))]
    rows += [
        (f"cut: {cut.reason}", f"{cut.steps}", _span(cut.first, cut.last), _s(cut.median_s), _s(cut.total_s))
        for cut in view.cuts
    ]
    note = ""
    if view.low is not None and view.high is not None:
        interval = f"{_s(view.low)} to {_s(view.high)} s ({100 * (view.high - view.low) / view.median:.2g} % wide)"
        note = f"90 % interval of the median: {interval}; mean {_s(view.mean)} s"
    yield Table(title="", columns=_STEPS, rows=tuple(rows), note=note)
    if view.timers:
        timers = tuple((name, f"{seconds:.4g}") for name, seconds in view.timers[:_MOST])
        yield Table(title="", columns=_TIMERS, rows=timers)
    if view.shares:
        yield Line("of the traced time: " + ", ".join(f"{what} {share:.1%}" for what, share in view.shares))
    if view.kernels:
        kernels = tuple((name, f"{seconds:.4g}", f"{calls}") for name, seconds, calls in view.kernels[:_MOST])
        yield Table(title="Kernels with most time", columns=_KERNELS, rows=kernels)


def _s(seconds: float) -> str:
    return f"{seconds:.6g}"


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"
