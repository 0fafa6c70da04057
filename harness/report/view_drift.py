"""The lines and tables of a comparison with earlier results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from harness.report.table import Report, Table, figure, listed, percent, signed, text
from harness.score.drift import WORSE, Drift, Moved

SHOWN = 0.001  # a move below a tenth of a point is not worth a line
MOST = 10  # causes named in the gate; the tables hold all


def added(report: Report, drift: Drift, plain: Drift | None = None) -> Report:
    """``report`` with the drift tables in front and the verdict among its gate lines.

    ``plain``: the drift of the uncalibrated rows, which is told and never judged: a fitted factor hides a constant that
    is wrong by the same share everywhere.
    """
    word = "PASS" if drift.passed else "FAIL"
    verdict = (
        f"{word} against earlier results: {len(drift.lost)} rows lost, {len(drift.broken)} broken (error grew by more"
        f" than {_points(drift.tolerance)}), {len(drift.removed)} removed, {len(drift.gained)} gained,"
        f" {len(drift.added)} new, {len(drift.worse)} worse by more than {_points(WORSE)}; mean error of shared rows"
        f" {percent(drift.before)} before, {percent(drift.after)} now"
    )
    lines = [verdict, *_most(causes(drift))]
    if plain is not None and plain.before is not None:
        lines.append(
            f"NOTE uncalibrated: mean error of shared rows {percent(plain.before)} before, {percent(plain.after)} now;"
            f" {len(plain.worse)} rows worse by more than {_points(WORSE)}"
        )
    tables = (_moved(drift), _listed(drift))
    return replace(report, gate=(*report.gate, *lines), tables=(*(t for t in tables if t.rows), *report.tables))


def causes(drift: Drift) -> Iterator[str]:
    """One line for everything that fails."""
    for predictor, run in drift.lost:
        yield f"FAIL {run}, {predictor}: projected before, not now ({drift.reasons.get((predictor, run), '')})"
    if not drift.may_remove:
        for predictor, run in drift.removed:
            yield f"FAIL {run}, {predictor}: projected before, no longer in the suite (--allow-removed accepts it)"
    for m in drift.broken:
        yield (
            f"FAIL {m.run_id}, {m.predictor}: {m.metric} error {signed(m.before)} before, {signed(m.after)} now:"
            f" {_points(m.growth)} worse, at most {_points(drift.tolerance)} allowed{_remeasured(m)}"
        )


def _most(lines: Iterator[str]) -> list[str]:
    found = list(lines)
    more = [f"FAIL and {len(found) - MOST} more rows: see the table of drift"] if len(found) > MOST else []
    return found[:MOST] + more


def _points(fraction: float) -> str:
    return f"{100 * fraction:.3g} points"


def _remeasured(moved: Moved) -> str:
    return " (the measured figure changed, too)" if moved.remeasured else ""


def _moved(drift: Drift) -> Table:
    made = (
        text("row that moved", "run_id"),
        text("predictor", "predictor"),
        text("error of", "metric"),
        figure("before", "before", signed),
        figure("now", "after", signed),
        figure("growth", "growth", signed),
        text("verdict", lambda m: _verdict(m, drift.tolerance)),
    )
    moved = [m for m in drift.moved if abs(m.growth) > SHOWN]
    return listed("Drift against earlier results (held out)", moved, made)


def _verdict(moved: Moved, tolerance: float) -> str:
    word = "broken" if moved.growth > tolerance else "worse" if moved.growth > 0 else "better"
    return word + _remeasured(moved)


def _listed(drift: Drift) -> Table:
    changes = (("lost", drift.lost), ("removed", drift.removed), ("gained", drift.gained), ("new", drift.added))
    made = (text("change", lambda c: c[0]), text("predictor", lambda c: c[1]), text("run", lambda c: c[2]))
    return listed("Projections lost, removed, gained and new", [(w, *key) for w, keys in changes for key in keys], made)
