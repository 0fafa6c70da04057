"""Old rows against new rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from harness.contracts import frame
from harness.contracts.results import Row
from harness.report import view_drift
from harness.report.table import Report
from harness.score import drift
from harness.score.drift import Drift


def compare(old: Sequence[Row], new: Sequence[Row], **more: Any) -> Drift:
    return drift.compare(frame.of(old), frame.of(new), **more)


def test_lost_gained_and_broken(make_row) -> None:
    old = [make_row("a", 100, 101), make_row("b", 100, 102), make_row("c", 100, None), make_row("gone", 100, 100)]
    new = [make_row("a", 100, 120), make_row("b", 100, None), make_row("c", 100, 100), make_row("fresh", 100, 100)]
    found = compare(old, new)
    assert found.lost == (("simulate", "b"),)
    assert found.reasons == {("simulate", "b"): "unsupported"}
    assert found.gained == (("simulate", "c"),)
    assert found.added == (("simulate", "fresh"),)
    assert found.removed == (("simulate", "gone"),)
    assert [m.run_id for m in found.broken] == ["a"]
    assert not found.passed


def test_a_lost_row_alone_does_not_pass(make_row) -> None:
    kept = make_row("a", 100, 101)
    assert not compare([kept, make_row("b", 100, 102)], [kept, make_row("b", 100, None)]).passed


def test_a_better_mean_does_not_hide_a_broken_row(make_row) -> None:
    old = [make_row("a", 100, 150), make_row("b", 100, 100)]
    new = [make_row("a", 100, 100), make_row("b", 100, 110)]
    found = compare(old, new)
    assert found.after < found.before
    assert not found.passed


def test_the_same_rows_pass(make_row) -> None:
    rows = [make_row("a", 100, 103), make_row("b", 100, None)]
    found = compare(rows, rows)
    assert found.passed
    assert found.before == found.after


def test_a_row_that_leaves_its_suite_is_lost_coverage_unless_that_is_meant(make_row) -> None:
    old = [make_row("a", 100, 100), make_row("b", 100, 100)]
    assert not compare(old, old[:1]).passed
    assert compare(old, old[:1], may_remove=True).passed
    assert compare(old[:1], old).passed


def test_what_was_not_asked_for_this_time_is_not_removed(make_row) -> None:
    old = [make_row("a"), make_row("b", suite="other"), make_row("c", predictor="benchmark")]
    assert compare(old, [make_row("a")]).removed == ()
    twice = [make_row("a", suite="other"), make_row("a"), make_row("b", suite="other"), make_row("b")]
    assert compare(twice, [make_row("a")]).removed == (("simulate", "b"),)


def test_the_tolerance_is_what_the_user_says(make_row) -> None:
    old, new = [make_row("a", 100, 101)], [make_row("a", 100, 104)]
    found = compare(old, new)
    assert found.passed
    assert [m.run_id for m in found.worse] == ["a"]
    assert not compare(old, new, broken=0.02).passed
    assert compare(old, new, broken=0.03 + 1e-9).passed


def test_memory_drifts_like_throughput(make_row) -> None:
    old = [make_row("a", memory_error=0.01, measured_memory_gib=10.0)]
    new = [make_row("a", memory_error=-0.20, measured_memory_gib=10.0)]
    (broken,) = compare(old, new).broken
    assert (broken.metric, round(broken.growth, 3)) == ("memory", 0.19)
    assert compare(old, new).after == 0.0


def test_a_new_measurement_is_told_apart_from_a_new_projection(make_row) -> None:
    (broken,) = compare([make_row("a", 100, 100)], [make_row("a", 80, 100)]).broken
    assert broken.remeasured
    (same,) = compare([make_row("a", 100, 100)], [make_row("a", 100, 120)]).broken
    assert not same.remeasured


def test_a_change_is_judged_by_source_and_rows_that_are_new_to_it_stand_apart(make_row) -> None:
    """Two rows of one source weigh as much as one of another."""
    old = [make_row("a1", 100, 110), make_row("a2", 100, 130), make_row("b", 100, 120), make_row("c", 100, None)]
    new = [make_row("a1", 100, 105), make_row("a2", 100, 105), make_row("b", 100, 130), make_row("c", 100, 150)]
    found = compare(old, new)
    by = drift.paired(found.moved, lambda run: run[0])
    assert by is not None
    assert (by.rows, by.sources, by.better, by.worse) == (3, 2, 1, 1)
    assert (by.before, by.after) == pytest.approx((0.2, 0.175))
    assert by.interval is not None
    assert by.interval[0] <= by.after - by.before <= by.interval[1]
    assert [(m.run_id, m.after) for m in found.only_new] == [("c", pytest.approx(0.5))]
    report = view_drift.added(Report(title="t"), found, None, view_drift.Known(looked={"b"}))
    (table,) = (t for t in report.tables if t.title == "The change by source")
    assert [row[0] for row in table.rows] == [
        "open, held out",
        "first looks, held out",
        "only new projects it, held out",
    ]
