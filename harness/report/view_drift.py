"""The tables of a comparison with earlier results."""

from __future__ import annotations

from dataclasses import replace

from harness.drift import BROKEN, Drift
from harness.report.table import Column, Report, Table, percent, signed

__all__ = ["added"]

SHOWN = 0.001  # a move below a tenth of a point is not worth a line


def added(report: Report, drift: Drift) -> Report:
    """``report`` with the drift tables in front and the verdict among its gate lines."""
    word = "PASS" if drift.passed else "FAIL"
    verdict = (
        f"{word} against earlier results: {len(drift.lost)} rows lost, {len(drift.broken)} broken (error grew by more"
        f" than {percent(BROKEN, 0)}), {len(drift.gained)} gained; mean error of shared rows"
        f" {percent(drift.before)} before, {percent(drift.after)} now"
    )
    tables = (_moved(drift), _listed(drift))
    return replace(report, gate=(*report.gate, verdict), tables=(*(t for t in tables if t.rows), *report.tables))


def _moved(drift: Drift) -> Table:
    columns = (
        Column("row that moved", numeric=False),
        Column("predictor", numeric=False),
        Column("before"),
        Column("now"),
        Column("growth"),
    )
    moved = [m for m in drift.moved if abs(m.growth) > SHOWN]
    rows = tuple((m.run_id, m.predictor, signed(m.before), signed(m.after), signed(m.growth)) for m in moved)
    return Table(title="Drift against earlier results (held out)", columns=columns, rows=rows)


def _listed(drift: Drift) -> Table:
    columns = (Column("change", numeric=False), Column("predictor", numeric=False), Column("run", numeric=False))
    rows = tuple(("lost", *key) for key in drift.lost) + tuple(("gained", *key) for key in drift.gained)
    return Table(title="Projections lost and gained", columns=columns, rows=rows)
