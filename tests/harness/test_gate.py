"""Each threshold holds and fails, and every kind of damage to the rows makes a gate fail."""

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


def plain(rows, **more):
    return [replace(r, fit="uncalibrated", **more) for r in rows]


def each(rows, **more):
    return [replace(r, **more) for r in rows]


def scaled(rows, factor):
    return [replace(r, projected_tgs=r.projected_tgs * factor, error=(1 + r.error) * factor - 1) for r in rows]


def second(rows, **more):
    return [rows[0], replace(rows[1], **more), *rows[2:]]


INSIDE, BEFORE = {"interval_coverage": 0.8}, {"uncalibrated_mape": 0.03, "mape": 0.03}
#: What is 20 % too slow may have the smaller error, where it was 15 % too fast.
SIDES = {"uncalibrated_mape": 0.16, "uncalibrated_bias_min": -0.05, "uncalibrated_bias_max": 0.16}
#: What is done to the rows, the limits (None: those above), and which of them do not hold.
DAMAGES = {
    "nothing": (lambda r: r, None, set()),
    "a constant too fast": (lambda r: scaled(r, 1.1), None, {"mape", "worst", "bias"}),
    "a constant too slow": (lambda r: scaled(r, 0.9), None, {"mape", "worst", "bias"}),
    "a dropped row": (lambda r: second(r, projected_tgs=None, error=None, status="unsupported"), None, {"coverage"}),
    "a swapped order": (
        lambda r: [replace(r[0], projected_tgs=149.0), r[1], r[2]], None, {"kendall_tau", "top1_regret"},
    ),
    "one broken row behind a good mean": (
        lambda r: [*r, *(replace(r[0], run_id=f"x{i}", error=0.0) for i in range(50)), replace(r[0], error=0.5)],
        {"mape": 0.05, "worst": 0.2}, {"worst"},
    ),
    "memory that holds": (lambda r: r, {"memory_mape": 0.01}, set()),
    "memory that does not": (lambda r: r, {"memory_mape": 0.005}, {"memory_mape"}),
    "no memory": (lambda r: each(r, memory_error=None), {"memory_mape": 0.5}, {"memory_mape"}),
    "memory of what is projected not to fit": (
        lambda r: second(r, status="out-of-memory", memory_error=3.0), {"memory_mape": 1.0}, {"memory_mape"},
    ),
    "all inside": (lambda r: each(r, interval_low=80.0, interval_high=200.0), INSIDE, set()),
    "one outside": (
        lambda r: second(each(r, interval_low=80.0, interval_high=200.0), interval_high=90.0), INSIDE, set(INSIDE),
    ),
    "no interval": (lambda r: r, INSIDE, set(INSIDE)),
    "rows enough": (lambda r: r, {"min_rows": 3}, set()),
    "too few rows": (lambda r: r[1:], {"min_rows": 3, "mape": 0.03}, {"min_rows"}),
    "the same before the fit": (lambda r: [*r[:3], *plain(r[:3])], BEFORE, set()),
    "what a fit hides": (lambda r: [*r[:3], *plain(r[:3], error=-0.5)], BEFORE, {"uncalibrated_mape"}),
    "too fast before the fit": (lambda r: plain(r[:3], error=0.15), SIDES, set()),
    "too slow before the fit": (lambda r: plain(r[:3], error=-0.08), SIDES, {"uncalibrated_bias_min"}),
    "faster than it may": (
        lambda r: plain(r[:3], error=0.15), {"uncalibrated_bias_max": 0.1}, {"uncalibrated_bias_max"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGES)
def test_every_kind_of_damage_fails_its_limits_and_no_others(rows, framed, kind: str) -> None:
    damage, limits, broken = DAMAGES[kind]
    assert failed(damage(rows), framed, limits) == broken


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


def test_a_mode_that_was_not_run_is_not_judged(rows, framed) -> None:
    assert gate.check("s", framed(rows), {"benchmark": {"mape": 0.01}}) == []


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
    assert (found.lost, found.reasons) == ((("simulate", "b"),), {("simulate", "b"): "unsupported"})
    assert (found.gained, found.added) == ((("simulate", "c"),), (("simulate", "fresh"),))
    assert found.removed == (("simulate", "gone"),)
    assert [m.run_id for m in found.broken] == ["a"]
    assert [m.run_id for m in compare(old[:1], [make_row("a", 100, 104)]).worse] == ["a"]


BETTER = [("a", 150), ("b", 100)], [("a", 100), ("b", 110)]
SLIGHT = [("a", 101)], [("a", 104)]


@pytest.mark.parametrize(
    ("old", "new", "more", "passes"),
    [
        ([("a", 103), ("b", None)], [("a", 103), ("b", None)], {}, True),
        ([("a", 101), ("b", 102)], [("a", 101), ("b", None)], {}, False),
        (*BETTER, {}, False),  # a better mean hides no broken row
        ([("a", 100), ("b", 100)], [("a", 100)], {}, False),
        ([("a", 100), ("b", 100)], [("a", 100)], {"may_remove": True}, True),
        ([("a", 100)], [("a", 100), ("b", 100)], {}, True),
        (*SLIGHT, {}, True),
        (*SLIGHT, {"broken": 0.02}, False),
        (*SLIGHT, {"broken": 0.03 + 1e-9}, True),
    ],
)
def test_which_drift_passes(make_row, old: list, new: list, more: dict[str, Any], passes: bool) -> None:
    found = compare(*([make_row(name, 100, projected) for name, projected in rows] for rows in (old, new)), **more)
    assert found.passed is passes
    assert (found.after < found.before) == ((old, new) == BETTER)
    assert old != new or found.after == found.before


def test_what_was_not_asked_for_this_time_is_not_removed(make_row) -> None:
    old = [make_row("a"), make_row("b", suite="other"), make_row("c", predictor="benchmark")]
    assert compare(old, [make_row("a")]).removed == ()
    twice = [make_row("a", suite="other"), make_row("a"), make_row("b", suite="other"), make_row("b")]
    assert compare(twice, [make_row("a")]).removed == (("simulate", "b"),)


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
    (kept,) = compare([make_row("a", 100.123, 100)], [make_row("a", 100.1234567, 120)]).broken  # a file rounds
    assert not kept.remeasured


def test_a_change_is_judged_by_source_and_rows_that_are_new_to_it_stand_apart(make_row) -> None:
    """Two rows of one source weigh as much as one of another."""
    old = [make_row("a1", 100, 110), make_row("a2", 100, 130), make_row("b", 100, 120), make_row("c", 100, None)]
    new = [make_row("a1", 100, 105), make_row("a2", 100, 105), make_row("b", 100, 130), make_row("c", 100, 150)]
    found = compare(old, new)
    by = drift.paired(found.moved, lambda run: run[0])
    assert (by.rows, by.sources, by.better, by.worse) == (3, 2, 1, 1)
    assert (by.before, by.after) == pytest.approx((0.2, 0.175))
    assert by.interval[0] <= by.after - by.before <= by.interval[1]
    assert [(m.run_id, m.after) for m in found.only_new] == [("c", pytest.approx(0.5))]
    report = view_drift.added(Report(title="t"), found, None, view_drift.Known(looked={"b"}))
    (table,) = (t for t in report.tables if t.title == "The change by source")
    words = ("open", "first looks", "only new projects it")
    assert [row[0] for row in table.rows] == [f"{each}, held out" for each in words]
