"""The rule of the steady state: what is cut, in which order, and the interval of the median."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.evidence.ingest.steady import REASONS, steady, steady_state

NOISE = 2.0 + 0.001 * np.arange(40) % 0.005


def reason(state, step: int) -> str:
    return REASONS[state.reasons[step]]


def test_each_reason_in_its_order() -> None:
    values = NOISE.copy()
    values[30] = 9.0
    values[0] = 50.0
    flags = {name: np.zeros(40, bool) for name in ("skipped", "saved", "evaluated")}
    flags["skipped"][12] = flags["saved"][13] = flags["evaluated"][14] = True
    config = np.array([0] * 5 + [1] * 35)
    batch = np.array([128] * 7 + [256] * 32 + [0])
    segment = np.array([0] * 5 + [1] * 35)
    state = steady_state(values, config=config, batch=batch, segment=segment, **flags)
    found = {step: reason(state, step) for step in (0, 5, 7, 12, 13, 14, 30, 39)}
    assert found == {
        0: "other configuration",
        5: "other batch size",
        7: "warm-up",
        12: "skipped",
        13: "after a checkpoint",
        14: "after an evaluation",
        30: "outlier",
        39: "",
    }
    assert sum(cut.steps for cut in state.cuts) + state.kept == 40
    assert [cut.reason for cut in state.cuts] == list(REASONS[1:])


def test_every_start_has_its_warm_up() -> None:
    segment = np.repeat([0, 1, 2], [20, 3, 17])
    state = steady_state(NOISE, segment=segment)
    warm = [i for i in range(40) if reason(state, i) == "warm-up"]
    assert warm == [0, 1, 2, 3, 4, 20, 23, 24, 25, 26, 27]


@pytest.mark.parametrize(("steps", "kept"), [(1, 1), (2, 2), (3, 2), (6, 4), (15, 10), (16, 11)])
def test_short_logs_keep_something(steps: int, kept: int) -> None:
    assert steady_state(np.full(steps, 2.0)).kept == kept


def test_when_everything_is_exceptional_nothing_is() -> None:
    every = np.ones(6, bool)
    assert steady_state(np.full(6, 2.0), skipped=every).kept == 4
    assert steady_state(np.full(6, 2.0), evaluated=every).kept == 4


def test_two_levels_are_no_outliers() -> None:
    values = np.concatenate([np.full(155, 2.51), np.full(345, 2.35)]) + 0.001 * (np.arange(500) % 3)
    state = steady_state(values)
    assert state.kept == 495
    assert state.drift == pytest.approx(2.351 / 2.511 - 1, abs=1e-3)
    assert state.value == pytest.approx(2.351, abs=0.002)


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(200):
        state = steady_state(np.concatenate([np.full(5, 2.0), rng.lognormal(0.0, 0.02, 60)]))
        assert state.low is not None
        assert state.high is not None
        hits += state.low <= 1.0 <= state.high
    assert 0.83 <= hits / 200 <= 0.97


def test_the_interval_is_that_of_resampling() -> None:
    values = np.random.default_rng(3).normal(5.0, 0.1, 101)
    state = steady_state(np.concatenate([np.full(5, 5.0), values]))
    kept = values[state.reasons[5:] == 0]
    drawn = np.median(np.random.default_rng(4).choice(kept, (4000, len(kept))), axis=1)
    assert state.low == pytest.approx(np.quantile(drawn, 0.05), abs=0.006)
    assert state.high == pytest.approx(np.quantile(drawn, 0.95), abs=0.006)
    assert state.rel_std == pytest.approx(drawn.std() / np.median(kept), rel=0.15)


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=60))
def test_the_median_lies_inside_its_interval_and_the_steps(times: list[float]) -> None:
    state = steady_state(np.asarray(times))
    assert min(times) <= state.value <= max(times)
    if state.low is not None and state.high is not None:
        assert state.low <= state.high
        assert min(times) <= state.low
        assert state.high <= max(times)
    assert steady(times) == steady(times)
    assert state.kept + sum(cut.steps for cut in state.cuts) == len(times)


def test_no_steps_is_an_error() -> None:
    with pytest.raises(ValueError, match="no steps"):
        steady([])


def test_of_two_steps_that_differ_the_first_is_warm_up() -> None:
    assert steady_state(np.array([60.0, 5.0])).value == 5.0
    assert steady_state(np.array([5.2, 5.0])).value == pytest.approx(5.1)
