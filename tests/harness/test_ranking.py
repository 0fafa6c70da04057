"""Kendall's tau-b against scipy, pairwise agreement and regret on figures worked out by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from harness.contracts import frame
from harness.evaluation.evaluate import Selected, row_of
from harness.evaluation.facts import facts_of
from harness.evidence.runs_of import runs_of_all
from harness.predictors.ours import Ours
from harness.score import ranking
from harness.score.switches import Step, ladders

FIGURE = st.integers(1, 12).map(float)  # small integers, so that ties happen
PAIRS = st.lists(st.tuples(FIGURE, FIGURE), min_size=2, max_size=25)


@given(PAIRS)
def test_tau_is_that_of_scipy_without_noise(pairs: list[tuple[float, float]]) -> None:
    x, y = zip(*pairs, strict=True)
    expected = kendalltau(x, y).statistic
    found = ranking.tau_b(x, y, noise=0.0)
    if np.isnan(expected):
        assert found == (None if len(set(x)) == 1 else 0.0)
    else:
        assert found == pytest.approx(expected, abs=1e-12)


def test_pairs_inside_the_noise_are_ties() -> None:
    assert ranking.tau_b([100.0, 100.5], [1.0, 2.0]) is None
    assert ranking.tau_b([100.0, 102.0], [1.0, 2.0]) == 1.0
    assert ranking.tau_b([100.0, 102.0, 50.0], [1.0, 2.0, 3.0], noise=[0.05, 0.0, 0.0]) == pytest.approx(
        -2 / np.sqrt(2 * 3)
    )


def test_agreement_counts_only_what_the_measurement_tells_apart() -> None:
    assert ranking.agreement([1.0, 2.0, 3.0], [1.0, 3.0, 2.0]) == (pytest.approx(2 / 3), 3)
    assert ranking.agreement([1.0, 2.0], [5.0, 5.0]) == (0.5, 1)
    assert ranking.agreement([1.0, 1.001], [1.0, 2.0]) == (None, 0)


def test_regret_is_the_throughput_lost_by_following_the_projection() -> None:
    assert ranking.regret([80.0, 100.0], [9.0, 7.0]) == pytest.approx(0.2)
    assert ranking.regret([80.0, 100.0], [7.0, 9.0]) == 0.0
    assert ranking.regret([80.0, 100.0], [7.0, 7.0]) == pytest.approx(0.1)


def test_the_spread_that_a_source_states_widens_a_tie(make_row, framed) -> None:
    rows = [make_row("a", 100.0, 2.0), make_row("b", 105.0, 1.0)]
    (sharp,) = ranking.group_rankings(framed(rows))
    (loose,) = ranking.group_rankings(framed(rows, rel_std=0.1))
    assert (sharp.pairs, sharp.tau) == (1, -1.0)
    assert (loose.pairs, loose.tau) == (0, None)


@given(PAIRS)
def test_regret_is_a_fraction(pairs: list[tuple[float, float]]) -> None:
    x, y = zip(*pairs, strict=True)
    assert 0.0 <= ranking.regret(x, y) < 1.0


def test_groups_need_two_projections_and_count_the_missing(make_row, facts_for, framed) -> None:
    rows = [make_row("a", 100, 90), make_row("b", 120, 95), make_row("c", 110, None)]
    rows += [make_row("alone", group="other"), make_row("none", group="")]
    facts = facts_for(*rows)
    facts["a"] = replace(facts["a"], differs={"tp": "1", "pp": "2"})
    facts["b"] = replace(facts["b"], differs={"tp": "1", "pp": "4", "ep": "8"})
    (group,) = ranking.group_rankings(framed(rows, facts))
    assert (group.group, group.rows, group.missing, group.tau) == ("g", 2, 1, 1.0)
    assert (group.chosen, group.best, group.regret) == ("b", "b", 0.0)
    assert group.differs == ("pp", "ep")
    assert group.stated


def test_summary_is_the_mean_over_groups(make_row, framed) -> None:
    rows = [make_row("a", 100, 90), make_row("b", 120, 95)]
    rows += [make_row("c", 100, 95, group="h"), make_row("d", 200, 90, group="h")]
    found = ranking.summary(ranking.group_rankings(framed(rows)))
    assert (found.groups, found.rows, found.tau, found.agreement) == (2, 4, 0.0, 0.5)
    assert found.regret == pytest.approx(0.25)
    assert (found.worst_regret, found.worst_group) == (0.5, "h")
    assert ranking.summary([]).tau is None


def test_the_measured_best_has_a_place_in_a_search() -> None:
    measured = [5.0, 4.0, 3.0, 2.0, 1.0]
    assert ranking.place(measured, measured) == 1
    assert ranking.place(measured, measured[::-1]) == 5
    assert ranking.place(measured, [1.0] * 5) == 3  # no opinion: the middle
    assert ranking.place(measured, [4.0, 5.0, 3.0, 2.0, 1.0]) == 2


def test_the_first_three_are_found_or_not() -> None:
    measured = [5.0, 4.0, 3.0, 2.0, 1.0]
    assert ranking.recall(measured, measured) == 1
    assert ranking.recall(measured, measured[::-1]) == pytest.approx(1 / 3)
    close = [5.0, 4.0, 3.0, 2.999, 1.0]  # the fourth within noise of the third
    assert ranking.recall(close, [5.0, 4.0, 1.0, 3.0, 0.5]) == 1
    assert ranking.recall(measured, [5.0, 4.0, 1.0, 3.0, 0.5]) == pytest.approx(2 / 3)


# Published ladders, one switch changed in each step: what every step gains is projected within three points of what it
# measured, and where it is not, the gap may not grow.


RUNS = Path(__file__).resolve().parents[2] / "measured" / "runs"
NEAR = 0.03
#: Steps whose gain is off by more, with the gap that they may have.
OFF = {
    "dsv2lite-mi355x-step-deepep": 0.046,
    "dsv2lite-mi355x-step-syncfree1": 0.035,
    "dsv2-236b-mi355x-4n-2-deepep": 0.042,
    "dsv2-236b-mi355x-4n-4-vpp3": 0.054,
    "dsv2-236b-mi355x-4n-5-syncfree1": 0.034,
}


@pytest.fixture(scope="module")
def steps() -> list[Step]:
    texts = [path for path in sorted(RUNS.glob("*.yaml")) if "-steps" in path.read_text(encoding="utf-8")]
    runs = [run for run in runs_of_all(texts) if run.group.endswith("-steps")]
    predict = Ours("simulate").predict
    rows = [row_of(Selected("", run), "simulate", "uncalibrated", predict(run), None) for run in runs]
    return ladders(frame.of(rows, {run.id: facts_of(run) for run in runs}))


def test_every_step_of_a_ladder_gains_what_it_measured(steps: list[Step]) -> None:
    gaps = {step.run: abs(step.projected - step.measured) for step in steps}
    assert {run: gap for run, gap in gaps.items() if gap > OFF.get(run, NEAR)} == {}
    assert OFF.keys() <= gaps.keys()
    assert len(gaps) >= 11
    assert {run: gaps[run] for run in OFF if gaps[run] < OFF[run] - 0.005} == {}  # a closed gap is written here
