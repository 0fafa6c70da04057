"""What was kept and cut of a log's steps, as aligned text; timers and kernels where the log has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.report.ingest_view import StepView

__all__ = ["lines"]

_HEAD = ("steps", "count", "iterations", "median s", "total s")
_MOST = 10  # timers and kernels shown
_NAME = 56  # characters of a kernel's name


def lines(view: StepView) -> Iterator[str]:
    """The table of one run, and under it the interval, timers and kernels."""
    kept = view.seconds[view.reasons == 0]
    numbers = view.iteration[view.reasons == 0]
    inside = _span(int(numbers.min()), int(numbers.max()))
    rows = [_HEAD, ("kept", f"{view.kept}", inside, _s(view.median), _s(kept.sum()))]
    rows += [
        (f"cut: {cut.reason}", f"{cut.steps}", _span(cut.first, cut.last), _s(cut.median_s), _s(cut.total_s))
        for cut in view.cuts
    ]
    yield from _aligned(rows)
    if view.low is not None and view.high is not None:
        interval = f"{_s(view.low)} to {_s(view.high)} s ({100 * (view.high - view.low) / view.median:.2g} % wide)"
        yield f"  90 % interval of the median: {interval}; mean {_s(view.mean)} s"
    if view.timers:
        yield "  timers, mean seconds a step:"
        yield from _aligned([(name, f"{seconds:.4g}") for name, seconds in view.timers[:_MOST]], "    ")
    if view.shares:
        yield "  of the traced time: " + ", ".join(f"{what} {share:.1%}" for what, share in view.shares)
    if view.kernels:
        yield "  kernels with most time (seconds, calls):"
        table = [(name[:_NAME], f"{seconds:.4g}", f"{calls}") for name, seconds, calls in view.kernels[:_MOST]]
        yield from _aligned(table, "    ")


def _s(seconds: float) -> str:
    return f"{seconds:.6g}"


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


def _aligned(rows: Sequence[Sequence[str]], indent: str = "  ") -> Iterator[str]:
    """Columns as wide as their widest cell; the first flush left, the rest flush right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield (indent + "  ".join(cells)).rstrip()
