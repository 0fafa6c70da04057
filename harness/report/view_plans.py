"""Published totals beside their plans: hours, goodput and interruptions, power."""

from __future__ import annotations

from collections.abc import Sequence

from harness.evaluation.plans import Held
from harness.report.spec import tabled
from harness.report.table import Report, percent
from projector.plan.forecast import Forecast


def build(rows: Sequence[Held]) -> Report:
    powered = [each for each in rows if None not in (each.kilowatts, each.total.mwh, each.total.gpu_hours)]
    tables = (
        tabled("hours", _hours(rows)),
        tabled("failures", _failures(rows)),
        tabled("power", powered, published=lambda each: 1e3 * each.total.mwh / each.total.gpu_hours),
        tabled("plan_sources", rows),
    )
    return Report.of(f"Plans of {len(rows)} published training runs", tables, _lines(rows))


def _lines(rows: Sequence[Held]) -> list[str]:
    found = []
    for words, pick in (("a projection of the run", _planned), ("the rate of its own steps", lambda each: each.own)):
        judged = [each for each in rows if not each.total.ideal and each.inside(pick(each)) is not None]
        errors = [_error(each, pick(each)) for each in judged]
        if judged:
            inside = sum(bool(each.inside(pick(each))) for each in judged)
            mean = sum(abs(error) for error in errors if error is not None) / len(errors)
            found.append(
                f"Hours from {words}: mean error {percent(mean)} over {len(judged)} runs, {inside} inside the interval."
            )
    return found


def _planned(each: Held) -> Forecast | None:
    return each.planned.forecast if each.planned else None


def _error(each: Held, found: Forecast | None) -> float | None:
    if found is None or each.total.gpu_hours is None:
        return None
    return float(found.middle.gpu_hours) / each.total.gpu_hours - 1.0


def _hours(rows: Sequence[Held]) -> list[tuple[object, ...]]:
    made = []
    for each in rows:
        total = each.total
        if total.gpu_hours is not None and (each.own or each.planned or each.refused):
            found = [cell for plan in (each.own, _planned(each)) for cell in _forecast(each, plan)]
            remarks = ("hours are ideal" if total.ideal else "", each.refused, total.notes)
            made.append((total.id, total.gpus, total.gpu_hours, *found, "; ".join(filter(None, remarks))))
    return made


def _forecast(each: Held, found: Forecast | None) -> tuple[object, ...]:
    """GPU-hours of a plan, their error, and their interval."""
    if found is None:
        return (None, None, None)
    return (found.middle.gpu_hours, _error(each, found), (found.low.gpu_hours, found.high.gpu_hours))


def _failures(rows: Sequence[Held]) -> list[tuple[object, ...]]:
    made = []
    for each in rows:
        if each.total.goodput is not None:
            low, middle, high = each.goodput
            counted: tuple[object, ...] = (None,) * 4
            if each.interruptions is not None and each.total.interruptions is not None:
                least, expected, most = each.interruptions
                counted = (each.total.interruptions[0], expected, least, most)
            made.append((each.total.id, each.total.gpus, each.total.goodput, middle, low, high, *counted))
    return made
