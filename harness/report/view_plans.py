"""Published totals beside their plans: hours, goodput and interruptions, power."""

from __future__ import annotations

from collections.abc import Sequence

from harness.evaluation.plans import Held
from harness.report.spec import number3
from harness.report.table import NONE, Column, Report, Table, figure, listed, number, percent, signed, text
from projector.plan.forecast import Forecast

_THOUSAND = 1e3


def build(rows: Sequence[Held]) -> Report:
    tables = (_hours(rows), _failures(rows), _power(rows), _sources(rows))
    return Report.of(f"Plans of {len(rows)} published training runs", tables, _lines(rows))


def _lines(rows: Sequence[Held]) -> list[str]:
    found = []
    for words, pick in (("a projection of the run", _planned), ("the rate of its own steps", _own)):
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


def _own(each: Held) -> Forecast | None:
    return each.own


def _error(each: Held, found: Forecast | None) -> float | None:
    if found is None or each.total.gpu_hours is None:
        return None
    return float(found.middle.gpu_hours) / each.total.gpu_hours - 1.0


def _hours(rows: Sequence[Held]) -> Table:
    columns = (
        Column("run", numeric=False),
        Column("GPUs", minor=2),
        Column("published"),
        *(Column(title, minor=minor) for title, minor in (("own steps", 0), ("error", 0), ("interval", 1))),
        *(Column(title, minor=minor) for title, minor in (("projected", 0), ("its error", 0), ("its interval", 1))),
        Column("remarks", numeric=False, minor=3),
    )
    shown = [each for each in rows if each.total.gpu_hours is not None and (each.own or each.planned or each.refused)]
    note = (
        "Thousands of GPU-hours. own steps: the printed rate of its steps, with failures and the rest of a run added; "
        "projected: the same from a projected step. Ideal hours are tokens over rate: a plan lies above them."
    )
    return Table(title="Hours", columns=columns, rows=tuple(_hours_row(each) for each in shown), note=note)


def _hours_row(each: Held) -> tuple[str, ...]:
    total = each.total
    assert total.gpu_hours is not None
    cells = [total.id, f"{total.gpus:,}", f"{total.gpu_hours / _THOUSAND:,.0f}"]
    for found in (_own(each), _planned(each)):
        if found is None:
            cells += [NONE] * 3
            continue
        low, high = (f"{end.gpu_hours / _THOUSAND:,.0f}" for end in (found.low, found.high))
        cells += [f"{found.middle.gpu_hours / _THOUSAND:,.0f}", signed(_error(each, found)), f"{low} to {high}"]
    remarks = [
        *(["hours are ideal"] if total.ideal else []),
        *([each.refused] if each.refused else []),
        *([total.notes] if total.notes else []),
    ]
    return (*cells, "; ".join(remarks))


def _failures(rows: Sequence[Held]) -> Table:
    columns = (
        Column("run", numeric=False),
        Column("GPUs"),
        Column("goodput"),
        Column("planned"),
        Column("from", minor=1),
        Column("to", minor=1),
        Column("interruptions"),
        Column("planned"),
        Column("from", minor=1),
        Column("to", minor=1),
    )
    made = []
    for each in rows:
        if each.total.goodput is None:
            continue
        low, middle, high = (percent(share) for share in each.goodput)
        counted = [NONE] * 4
        if each.interruptions is not None and each.total.interruptions is not None:
            least, expected, most = (number(value, 0) for value in each.interruptions)
            counted = [number(each.total.interruptions[0], 0), expected, least, most]
        made.append((each.total.id, f"{each.total.gpus:,}", percent(each.total.goodput), middle, low, high, *counted))
    note = "The rate of failures is that of two other clusters (projector constants plan.assumptions)."
    return Table(title="Failures", columns=columns, rows=tuple(made), note=note)


def _power(rows: Sequence[Held]) -> Table:
    made = (
        text("run", "total.id"),
        text("of what", "total.of"),
        figure("kW a GPU", lambda each: each.total.mwh * _THOUSAND / each.total.gpu_hours, number3),
        figure("planned", lambda each: each.kilowatts[1], number3),
        figure("from", lambda each: each.kilowatts[0], number3),
        figure("to", lambda each: each.kilowatts[2], number3),
    )
    shown = [each for each in rows if None not in (each.kilowatts, each.total.mwh, each.total.gpu_hours)]
    note = "Published energy over published hours. Energy computed from hours and rated power is left out."
    return listed("Power", shown, made, note)


def _sources(rows: Sequence[Held]) -> Table:
    return listed("Sources", rows, (text("run", "total.id"), text("source", "total.source")), detail=True)
