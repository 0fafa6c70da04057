"""Tabulates published totals beside their plans: hours, goodput and interruptions, power."""

from __future__ import annotations

from collections.abc import Sequence

from harness.evaluation.plans import Held
from harness.report.said import said
from harness.report.spec import tabled
from harness.report.table import Report
from projector.plan.forecast import Forecast


def build(rows: Sequence[Held]) -> Report:
    powered = [run for run in rows if None not in (run.kilowatts, run.total.mwh, run.total.gpu_hours)]
    tables = (
        tabled("hours", _hours(rows)),
        tabled("failures", _failures(rows)),
        tabled("power", powered, published=lambda run: 1e3 * run.total.mwh / run.total.gpu_hours),
        tabled("plan_sources", rows),
    )
    return Report.of(f"Plans of {len(rows)} published training runs", tables, _lines(rows))


def _lines(rows: Sequence[Held]) -> list[str]:
    sentences = []
    for words, pick in (("a projection of the run", _planned), ("the rate of its own steps", lambda run: run.own)):
        judged = [run for run in rows if not run.total.ideal and run.inside(pick(run)) is not None]
        errors = [_error(run, pick(run)) for run in judged]
        if judged:
            inside = sum(bool(run.inside(pick(run))) for run in judged)
            mean = sum(abs(error) for error in errors if error is not None) / len(errors)
            sentences += said("plans", {"words": words, "mean": mean, "runs": len(judged), "inside": inside})
    return sentences


def _planned(run: Held) -> Forecast | None:
    return run.planned.forecast if run.planned else None


def _error(run: Held, forecast: Forecast | None) -> float | None:
    if forecast is None or run.total.gpu_hours is None:
        return None
    return float(forecast.middle.gpu_hours) / run.total.gpu_hours - 1.0


def _hours(rows: Sequence[Held]) -> list[tuple[object, ...]]:
    lines = []
    for run in rows:
        total = run.total
        if total.gpu_hours is not None and (run.own or run.planned or run.refused):
            figures: list[object] = []  # GPU-hours of a plan, their error, and their interval
            for plan in (run.own, _planned(run)):
                ends = (plan.low.gpu_hours, plan.high.gpu_hours) if plan else None
                figures += (plan.middle.gpu_hours if plan else None, _error(run, plan), ends)
            remarks = ("hours are ideal" if total.ideal else "", run.refused, total.notes)
            lines.append((total.id, total.gpus, total.gpu_hours, *figures, "; ".join(filter(None, remarks))))
    return lines


def _failures(rows: Sequence[Held]) -> list[tuple[object, ...]]:
    lines = []
    for run in rows:
        if run.total.goodput is not None:
            low, middle, high = run.goodput
            counted: tuple[object, ...] = (None,) * 4
            if run.interruptions is not None and run.total.interruptions is not None:
                least, expected, most = run.interruptions
                counted = (run.total.interruptions.count, expected, least, most)
            lines.append((run.total.id, run.total.gpus, run.total.goodput, middle, low, high, *counted))
    return lines
