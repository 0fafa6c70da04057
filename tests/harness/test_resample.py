"""Bootstrap intervals over groups, and where the reports show them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.evaluation.evaluate import Evaluation
from harness.report import view_ranking
from harness.score import accuracy, ranking, resample

VALUES = st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=40)


@settings(max_examples=30, deadline=None)
@given(VALUES)
def test_the_interval_holds_the_mean_and_stays_between_the_extremes(values: list[float]) -> None:
    low, high = resample.of_mean(values)
    assert min(values) - 1e-12 <= low <= np.mean(values) + 1e-9
    assert np.mean(values) - 1e-9 <= high <= max(values) + 1e-12
    assert resample.of_mean(values) == (low, high)


def test_the_width_is_that_of_the_normal_approximation() -> None:
    values = np.random.default_rng(1).normal(0.0, 1.0, 400).tolist()
    low, high = resample.of_mean(values)
    resample._counts.cache_clear()
    assert resample.of_mean(values) == (low, high)  # the seed is fixed: another process draws the same
    assert high - low == pytest.approx(2 * 1.645 * np.std(values) / 20.0, rel=0.1)


def test_one_group_has_no_interval() -> None:
    assert resample.of_mean([0.5]) is None
    assert resample.of_ratio([0.0, 1.0], [0.0, 1.0]) is None
    assert resample.of_ratio([1.0, 2.0], [2.0, 4.0]) == (0.5, 0.5)


def test_the_summary_of_groups_carries_its_intervals(make_row, framed) -> None:
    rows = [make_row(f"{g}{i}", 100.0 + i, 100.0 + (i if g != "c" else -i), group=g) for g in "abc" for i in (0, 9)]
    found = ranking.summary(ranking.group_rankings(framed(rows)))
    assert found.tau == pytest.approx(1 / 3)
    assert found.tau_range == (pytest.approx(-1 / 3), 1.0)
    assert found.regret_range is not None
    assert found.regret_range[0] <= found.regret <= found.regret_range[1]
    assert ranking.summary([]).tau_range is None


def test_order_by_suite_and_what_differs(make_row, facts_for) -> None:
    rows = [make_row(f"{g}{i}", 100.0 + i, 100.0 + i, group=g, suite="s" + g) for g in "ab" for i in (0, 9)]
    facts = facts_for(*rows)
    for r in rows:
        differs = {"tp": r.run_id, "numa": r.run_id}
        facts[r.run_id] = replace(facts[r.run_id], differs=differs, switches=("version", "numa"))
    evaluation = Evaluation(rows=tuple(rows), facts=facts)
    made = view_ranking.by_suite(evaluation, "simulate")
    assert [line[0] for line in made.rows] == ["all", "all, by a field seen", "sa", "sb"]
    chosen = view_ranking.by_suite(evaluation, "simulate", {"mine": {"a0", "a9"}})
    assert [(line[0], line[1]) for line in chosen.rows][-1] == ("mine", "1")
    *_, inside = view_ranking.of_predictor(evaluation, "simulate")
    first, _ = inside.rows
    assert first[-2:] == ("tp", "numa")


def test_memory_error_of_all_kinds_together(make_row, framed) -> None:
    rows = [make_row("a", memory_error=0.1), make_row("b", memory_error=-0.3, status="out-of-memory"), make_row("c")]
    rows.append(make_row("d", memory_error=0.6, family="g"))
    found = accuracy.memory_error(framed(rows))
    assert (found.compared, found.worst_id) == (3, "d")
    assert found.macro_mape == pytest.approx((0.2 + 0.6) / 2)
    assert accuracy.memory_error(framed(rows[2:3])) is None
