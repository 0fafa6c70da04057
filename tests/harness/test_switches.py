"""Single-switch pairs: which runs make one, and what is said of them."""

from __future__ import annotations

import dataclasses
import math

import pytest

from harness.contracts import frame
from harness.contracts.results import RunFacts
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
