"""Single-switch pairs: which runs make one, and what is said of them."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

from harness.contracts import frame
from harness.contracts.results import Row, RunFacts
from harness.score import changes
from harness.score.scaling import origin, scaling, within
from harness.score.switches import ladders, pairs, sign_share, switches
from tests.harness.plain_rows import alone as row


def facts(**configurations: dict[str, str]) -> dict[str, RunFacts]:
    return {k: RunFacts(run_id=k, source="one", differs=v) for k, v in configurations.items()}


def test_a_pair_differs_in_one_key() -> None:
    known = facts(a={"tp": "1"}, b={"tp": "2"}, c={"tp": "2", "pp": "4"}, d={"tp": "1", "version": "x"})
    rows = [row("a", 100.0, 100.0), row("b", 110.0, 105.0), row("c", 90.0, 95.0), row("d", 120.0, 130.0)]
    found = pairs(frame.of(rows, known))
    assert [(p.switch, p.first, p.second) for p in found] == [("pp", "b", "c"), ("tp", "a", "b")]
    gain = found[1]
    assert (gain.before, gain.after) == ("1", "2")
    assert gain.measured == pytest.approx(1.1)
    assert gain.error == pytest.approx(math.log(1.05 / 1.1))
    assert gain.real
    assert gain.right


def test_a_precision_comes_with_its_recipe() -> None:
    known = facts(a={"precision": "bf16"}, b={"precision": "fp8", "fp8_recipe": "tensorwise"})
    assert [p.switch for p in pairs(frame.of([row("a", 1.0, 1.0), row("b", 2.0, 1.5)], known))] == ["precision"]


def test_other_sources_models_and_missing_figures_make_no_pair() -> None:
    known = facts(a={"tp": "1"}, b={"tp": "2"})
    assert not pairs(frame.of([row("a", 1.0, 1.0), row("b", 2.0, 1.5, model="n")], known))
    assert not pairs(frame.of([row("a", 1.0, 1.0), row("b", 2.0, None)], known))
    apart = known | {"b": RunFacts(run_id="b", source="two", differs={"tp": "2"})}
    assert not pairs(frame.of([row("a", 1.0, 1.0), row("b", 2.0, 1.5)], apart))


def test_signs_are_asked_of_real_gains_only() -> None:
    known = facts(a={"x": "0"}, b={"x": "1"}, c={"x": "2"})
    found = switches(pairs(frame.of([row("a", 100.0, 100.0), row("b", 101.0, 99.0), row("c", 120.0, 90.0)], known)))
    assert len(found) == 1
    assert found.loc["x", ["pairs", "real", "right"]].tolist() == [3, 2, 0]
    assert sign_share(found) == (0.0, 0.0)
    assert sign_share(switches([])) == (None, None)


def test_a_switch_that_no_field_holds_is_told_apart() -> None:
    known = {
        "a": RunFacts(run_id="a", source="one", differs={"launcher": "x"}, switches=("launcher",)),
        "b": RunFacts(run_id="b", source="one", differs={"launcher": "y"}, switches=("launcher",)),
    }
    found = pairs(frame.of([row("a", 100.0, 100.0), row("b", 120.0, 100.0)], known))
    assert [p.stated for p in found] == [False]
    assert sign_share(switches(found)) == (None, None)


def test_a_ladder_compares_each_run_with_the_one_before_it() -> None:
    known = facts(a={"x": "0"}, b={"x": "1"}, c={"x": "1", "y": "2", "version": "9"}, d={"x": "1"})
    rows = [
        dataclasses.replace(row(name, measured, projected), group=group)
        for name, measured, projected, group in (
            ("a", 100.0, 80.0, "job-steps"),
            ("b", 110.0, 84.0, "job-steps"),
            ("d", 1.0, 1.0, "other"),
            ("c", 132.0, 80.0, "job-steps"),
        )
    ]
    first, second = ladders(frame.of(rows, known))
    assert (first.run, first.changed, first.right) == ("b", ("x 1",), True)
    assert first.measured == pytest.approx(1.1)
    assert first.projected == pytest.approx(1.05)
    assert (second.run, second.changed, second.real, second.right) == ("c", ("y 2",), True, False)


# Scaling series: which runs make one, and what efficiency means.

PAPER = "A. Author 2022 arXiv:0000.00000 Table 1"


def scaled(run_id: str, gpus: int, measured: float, projected: float | None, **other: str) -> Row:
    return row(run_id, measured, projected, gpus=gpus, **other)


def fact(run_id: str, source: str = "one", flops: float = 1.0, **configuration: str) -> RunFacts:
    return RunFacts(run_id=run_id, source=source, differs=configuration, flops_per_token=flops)


def test_efficiency_is_over_the_smallest_size() -> None:
    known = {k: fact(k, gpus=n, global_batch_size=b, tp="8") for k, n, b in (("a", "8", "64"), ("b", "64", "512"))}
    (series,) = scaling(frame.of([scaled("b", 64, 90.0, 110.0), scaled("a", 8, 100.0, 125.0)], known))
    (point,) = series.points
    assert (series.smallest, point.gpus, series.settings) == (8, 64, "tp 8")
    assert point.measured == pytest.approx(0.9)
    assert point.projected == pytest.approx(0.88)
    assert point.error == pytest.approx(0.88 / 0.9 - 1)
    assert within([series]) == (1, 1)
    assert within([series], 0.02) == (0, 1)


def test_the_median_of_several_runs_of_one_size_counts() -> None:
    known = {k: fact(k, gpus=n) for k, n in (("a", "8"), ("b", "16"), ("c", "16"), ("d", "16"))}
    measured = (("a", 8, 100.0), ("b", 16, 90.0), ("c", 16, 10.0), ("d", 16, 95.0))
    rows = [scaled(name, gpus, tgs, 1.0) for name, gpus, tgs in measured]
    (point,) = scaling(frame.of(rows, known))[0].points
    assert (point.runs, point.measured) == (3, pytest.approx(0.9))


def test_other_configurations_sources_and_unprojected_runs_make_no_series() -> None:
    for other in (
        {"b": fact("b", gpus="16", tp="4")},
        {"b": fact("b", source="two", gpus="16", tp="8")},
        {"b": RunFacts(run_id="b", source="one", differs={"gpus": "16", "tp": "8"})},
    ):
        known = {"a": fact("a", gpus="8", tp="8")} | other
        assert not scaling(frame.of([scaled("a", 8, 1.0, 1.0), scaled("b", 16, 1.0, 1.0)], known))
    known = {"a": fact("a", gpus="8"), "b": fact("b", gpus="16")}
    assert not scaling(frame.of([scaled("a", 8, 1.0, 1.0), scaled("b", 16, 1.0, None)], known))


def test_rows_of_one_document_and_submissions_of_one_round_belong_together() -> None:
    assert origin("mlcommons/training_results_v5.0 A/results/x @abc") == origin("mlcommons/training_results_v5.0 B/y")
    assert origin("owner/project notes.md @abc line 1") == origin("owner/project notes.md @def line 9")
    assert origin("owner/project notes.md @abc") != origin("owner/project other.md @abc")


def test_models_that_grow_with_the_machine_are_compared_in_flops() -> None:
    known = {
        "a": fact("a", source=PAPER, flops=1.0, gpus="8", model="m1", pp="1"),
        "b": fact("b", source=PAPER, flops=10.0, gpus="64", model="m2", pp="8"),
    }
    rows = [scaled("a", 8, 100.0, 100.0, model="m1"), scaled("b", 64, 9.0, 11.0, model="m2")]
    (series,) = scaling(frame.of(rows, known))
    assert series.points[0].measured == pytest.approx(0.9)
    assert series.points[0].projected == pytest.approx(1.1)
    smaller = known | {"b": fact("b", source=PAPER, flops=0.5, gpus="64", model="m2", pp="8")}
    assert not scaling(frame.of(rows, smaller))
    elsewhere = {
        k: RunFacts(run_id=k, source="notes", differs=f.differs, flops_per_token=1.0) for k, f in known.items()
    }
    assert not scaling(frame.of(rows, elsewhere))


# What a change brings: which runs make a pair, and how it is scored.

Make = Callable[..., Row]


def rows_of(make_row: Make, *runs: tuple[str, float, float, dict[str, str], dict[str, Any]]) -> Any:
    """Runs by id, measured, projected, configuration, and what else of the row or of its facts."""
    rows, facts = [], {}
    for run, measured, projected, differs, more in runs:
        known = {"source": more.pop("source", "a/b x.md"), "switches": more.pop("switches", ("version",))}
        rows.append(make_row(run, measured, projected, fit="uncalibrated", **more))
        facts[run] = RunFacts(run_id=run, differs=differs, **known)
    return frame.of(rows, facts)


def test_a_group_pairs_all_of_its_runs_and_a_model_those_of_one_kind(make_row: Make) -> None:
    loose = {"group": ""}
    found = changes.pairs(
        rows_of(
            make_row,
            ("a", 100, 100, {"tp": "1"}, {}),
            ("b", 110, 105, {"tp": "2", "pp": "2"}, {}),
            ("c", 90, 95, {"tp": "1", "precision": "fp8"}, dict(loose)),
            ("d", 90, 95, {"tp": "4", "precision": "fp8"}, {**loose, "source": "c/d"}),
            ("e", 90, 95, {"tp": "1", "precision": "fp8"}, {**loose, "model": "other"}),
        )
    )
    assert [(p.first, p.second, sorted(p.kinds), p.group) for p in found] == [
        ("a", "b", ["pp", "tp"], "g"),
        ("a", "c", ["precision"], ""),
    ]
    assert found[0].measured == pytest.approx(1.1)
    assert found[0].error == pytest.approx(math.log(1.05 / 1.1))


def test_what_no_recipe_field_holds_is_no_kind_and_parts_runs_outside_a_group(make_row: Make) -> None:
    hidden = {"switches": ("version", "env", "tp")}
    found = changes.pairs(
        rows_of(
            make_row,
            ("a", 100, 100, {"env": "x", "tp": "1"}, dict(hidden)),
            ("b", 110, 100, {"env": "y", "tp": "2"}, dict(hidden)),
            ("c", 110, 120, {"env": "y", "tp": "2", "pp": "2"}, {**hidden, "group": ""}),
            ("d", 100, 100, {"env": "x", "tp": "1", "version": "2"}, dict(hidden)),
        )
    )
    assert [(p.first, p.second, p.kind) for p in found] == [
        ("a", "b", "only what no recipe field holds"),
        ("a", "d", "only what no recipe field holds"),
        ("b", "c", "pp"),
        ("b", "d", "only what no recipe field holds"),
    ]


def test_a_score_is_of_the_ratio_and_of_the_sign_beyond_noise(make_row: Make) -> None:
    runs = (("a", 100, 200, {"tp": "1"}, {}), ("b", 110, 220, {"tp": "2"}, {}), ("c", 101, 180, {"tp": "4"}, {}))
    of = changes.score(changes.pairs(rows_of(make_row, *runs)))
    assert (of.pairs, of.real, of.right) == (3, 2, 2)  # a to c is within 2 %
    assert of.median == pytest.approx(1 - 0.9 / 1.01)
    assert {of.worst.first, of.worst.second} == {"a", "c"} or {of.worst.first, of.worst.second} == {"b", "c"}
    assert changes.score([]) is None


def test_a_factor_that_both_runs_share_changes_nothing(make_row: Make) -> None:
    runs = rows_of(make_row, ("a", 100, 130, {"tp": "1"}, {}), ("b", 110, 120, {"tp": "2"}, {}))
    one, other = changes.pairs(runs), changes.pairs(runs.assign(projected_tgs=3.7 * runs["projected_tgs"]))
    assert one[0].projected == pytest.approx(other[0].projected)
