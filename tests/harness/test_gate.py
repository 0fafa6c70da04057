"""Each threshold holds and fails, and every kind of damage to the rows makes a gate fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.contracts import frame
from harness.contracts.results import Evaluation, Row, RunFacts
from harness.contracts.runs import MISSING_MODEL
from harness.report import files, view_drift
from harness.report.table import Report
from harness.score import drift, gate
from harness.score.drift import Drift


@pytest.fixture
def rows(make_row):
    return [
        make_row("a", 100, 102, memory_error=0.01),
        make_row("b", 120, 121),
        make_row("c", 150, 148),
        make_row("other fit", 100, 900, fit="uncalibrated"),
        make_row("other suite", 100, 900, suite="t"),
    ]


GATE = {
    "simulate": {"mape": 0.03, "worst": 0.03, "bias": 0.02, "coverage": 1.0, "kendall_tau": 1.0, "top1_regret": 0.0}
}


def failed(rows, framed, limits=None):
    checks = gate.check("s", framed(rows), {"simulate": limits} if limits else GATE)
    return {c.name for c in checks if not c.passed}


def test_good_rows_pass(rows, framed) -> None:
    assert not failed(rows, framed)


def test_a_bad_constant_fails(rows, framed) -> None:
    worse = [replace(r, projected_tgs=r.projected_tgs * 1.1, error=(1 + r.error) * 1.1 - 1) for r in rows]
    assert failed(worse, framed) == {"mape", "worst", "bias"}


def test_rows_that_were_disturbed_neither_pass_nor_fail(rows, framed) -> None:
    def words(bad, unclear, limits):
        facts = {r.run_id: RunFacts(run_id=r.run_id, disturbed=r.run_id in unclear) for r in rows}
        made = gate.check("s", framed([replace(rows[0], error=bad), *rows[1:]], facts), {"simulate": limits})
        return {c.name: (str(c).split()[0], c.passed) for c in made}

    limits = {"mape": 0.03, "coverage": 1.0}
    assert words(0.5, (), limits) == {"mape": ("FAIL", False), "coverage": ("PASS", True)}
    assert words(0.5, ("a",), limits) == {"mape": ("INCONCLUSIVE", True), "coverage": ("PASS", True)}
    assert words(0.0, ("a",), limits)["mape"] == ("INCONCLUSIVE", True)
    assert words(0.5, ("b",), limits)["mape"] == ("FAIL", False)  # by rows that nothing disturbed
    assert words(0.5, ("a", "b", "c"), limits)["mape"] == ("INCONCLUSIVE", True)
    assert words(0.5, ("a", "b", "c"), {"kendall_tau": 0.5})["kendall_tau"] == ("INCONCLUSIVE", True)


def test_what_was_disturbed_stays_with_the_run_in_a_file(rows, tmp_path) -> None:
    facts = {r.run_id: RunFacts(run_id=r.run_id) for r in rows}
    made = Evaluation(rows=tuple(rows), facts=facts).marked({"a"})
    (tmp_path / "results.json").write_text(files.json_text(files.Saved(evaluation=made, gates={}, provenance={})))
    read = files.read(tmp_path).evaluation.frame
    assert set(read.loc[read["disturbed"], "run_id"]) == {"a"}


def test_a_bias_to_the_slow_side_fails_like_one_to_the_fast_side(rows, framed) -> None:
    slower = [replace(r, projected_tgs=r.projected_tgs * 0.9, error=(1 + r.error) * 0.9 - 1) for r in rows]
    assert failed(slower, framed) == {"mape", "worst", "bias"}


def test_a_dropped_row_fails(rows, framed) -> None:
    lost = replace(rows[1], projected_tgs=None, error=None, status="unsupported")
    assert failed([rows[0], lost, *rows[2:]], framed) == {"coverage"}


def test_a_swapped_ranking_fails(rows, framed) -> None:
    swapped = [replace(rows[0], projected_tgs=149.0), rows[1], rows[2]]
    assert failed(swapped, framed) == {"kendall_tau", "top1_regret"}


def test_one_broken_row_fails_though_the_mean_is_fine(rows, framed) -> None:
    broken = [*rows, *(replace(rows[0], run_id=f"x{i}", error=0.0) for i in range(50)), replace(rows[0], error=0.5)]
    assert failed(broken, framed, {"mape": 0.05, "worst": 0.2}) == {"worst"}


def test_memory_and_what_the_rows_do_not_define(rows, framed) -> None:
    assert not failed(rows, framed, {"memory_mape": 0.01})
    assert failed(rows, framed, {"memory_mape": 0.005}) == {"memory_mape"}
    bare = [replace(r, memory_error=None) for r in rows]
    (check,) = gate.check("s", framed(bare), {"simulate": {"memory_mape": 0.5}})
    assert not check.passed
    assert "not defined" in str(check)


def test_a_mode_that_was_not_run_is_not_judged(rows, framed) -> None:
    assert gate.check("s", framed(rows), {"benchmark": {"mape": 0.01}}) == []


def test_the_line_says_what_was_found_and_required(rows, framed) -> None:
    (check,) = gate.check("s", framed(rows), {"simulate": {"worst": 0.001}})
    assert str(check).startswith("FAIL s simulate worst: 0.02, required <= 0.001 (a)")


def test_measurements_outside_their_intervals_fail(rows, framed) -> None:
    wide = [replace(r, interval_low=80.0, interval_high=200.0) for r in rows]
    limits = {"interval_coverage": 0.8}
    assert not failed(wide, framed, limits)
    narrow = [replace(wide[0], interval_high=90.0), *wide[1:]]
    assert failed(narrow, framed, limits) == {"interval_coverage"}
    assert failed(rows, framed, limits) == {"interval_coverage"}


def test_memory_of_rows_that_are_projected_not_to_fit_counts(rows, framed) -> None:
    out = replace(rows[1], status="out-of-memory", memory_error=3.0)
    assert failed([rows[0], out, *rows[2:]], framed, {"memory_mape": 1.0}) == {"memory_mape"}


def test_too_few_rows_fail_whatever_their_error(rows, framed) -> None:
    assert not failed(rows, framed, {"min_rows": 3})
    assert failed(rows[1:], framed, {"min_rows": 3, "mape": 0.03}) == {"min_rows"}


def test_a_constant_that_a_fit_hides_is_seen_before_the_fit(rows, framed) -> None:
    before = [replace(r, fit="uncalibrated") for r in rows[:3]]
    limits = {"uncalibrated_mape": 0.03, "mape": 0.03}
    assert not failed([*rows[:3], *before], framed, limits)
    halved = [replace(r, error=-0.5) for r in before]
    assert failed([*rows[:3], *halved], framed, limits) == {"uncalibrated_mape"}


def plain(rows, **more):
    return [replace(r, fit="uncalibrated", **more) for r in rows]


def test_a_bias_before_any_fit_is_bounded_on_both_sides(rows, framed) -> None:
    """What is 20 % too slow may have the smaller error, where it was 15 % too fast."""
    fast = [replace(r, error=0.15) for r in plain(rows[:3])]
    slow = [replace(r, error=-0.08) for r in plain(rows[:3])]
    limits = {"uncalibrated_mape": 0.16, "uncalibrated_bias_min": -0.05, "uncalibrated_bias_max": 0.16}
    assert not failed(fast, framed, limits)
    assert failed(slow, framed, limits) == {"uncalibrated_bias_min"}
    assert failed(fast, framed, {"uncalibrated_bias_max": 0.1}) == {"uncalibrated_bias_max"}


def test_the_worst_gpu_is_judged_where_it_has_rows_enough(rows, framed) -> None:
    good = [replace(rows[0], run_id=f"g{i}", gpu="a100", error=0.01) for i in range(gate.FEWEST)]
    bad = [replace(rows[0], run_id=f"b{i}", gpu="b200", error=-0.3) for i in range(gate.FEWEST)]
    few = bad[1:]
    limits = {"by_gpu.bias": 0.1, "by_gpu.mape": 0.1, "by_gpu.uncalibrated_bias_min": -0.1}
    both = [*good, *plain(good), *bad, *plain(bad)]
    assert failed(both, framed, limits) == set(limits)
    assert not failed([*good, *plain(good), *few, *plain(few)], framed, limits)
    (check,) = gate.check("s", framed(both), {"simulate": {"by_gpu.bias": 0.1}})
    assert str(check).startswith("FAIL s simulate by_gpu.bias: 0.3, required <= 0.1 (b200: signed -0.3000)")
    assert failed(rows, framed, limits) == set(limits)  # nothing to judge is no pass


def test_limits_of_every_gpu_are_read_as_a_mapping() -> None:
    read, problems = gate.parse_limits({"mape": 0.1, "by_gpu": {"bias": 0.2}}, "w", "gate.simulate")
    assert (read, problems) == ({"mape": 0.1, "by_gpu.bias": 0.2}, [])
    assert gate.parse_limits(read, "w", "gate.simulate") == (read, [])  # as a results.json has them
    for wrong in ({"by_gpu": {"coverage": 1.0}}, {"by_gpu": 3}, {"by_gpu": {"bias": -1}}):
        assert gate.parse_limits(wrong, "w", "gate.simulate")[1]


def test_a_model_that_the_zoo_lacks_fails_by_name_whatever_the_suite_asks(rows, framed) -> None:
    lost = replace(rows[1], projected_tgs=None, error=None, status="invalid", reason=f"{MISSING_MODEL} gone_7b (…)")
    for limits in (None, {"mape": 0.5}, {}):
        found = gate.check("s", framed([rows[0], lost]), {"simulate": limits} if limits is not None else {})
        (check,) = [c for c in found if c.name == "missing_models"]
        assert not check.passed
        assert "gone_7b" in str(check)
    assert not gate.check("s", framed(rows), {})


# Old rows against new rows.


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
