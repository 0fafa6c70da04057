"""Weighted medians, and what estimates come to by key."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.calibrate import calibration, weights
from harness.contracts.estimates import Observation


def seen(ratio: float, family: str = "f", key: str = "h100", framework: str = "mlm") -> Observation:
    levels = (key, "arch:hopper", "vendor:nvidia", "all")
    return Observation(run_id="r", family=family, framework=framework, levels=levels, log_ratio=ratio)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=30))
def test_the_weighted_median_of_equal_weights_is_the_median(values: list[float]) -> None:
    assert weights.median(values, np.ones(len(values))) == pytest.approx(np.median(values))


def test_weights_move_the_median() -> None:
    assert weights.median([1.0, 2.0, 3.0], [1.0, 1.0, 3.0]) == 3.0
    assert weights.median([1.0, 3.0], [2.0, 1.0]) == 1.0


def test_the_mean_factor_is_over_cells_and_its_spread_is_what_is_left() -> None:
    rows = [seen(0.0, "a")] * 9 + [seen(0.4, "b")]
    found = calibration.mean_factor(rows, [0.0] * 9 + [0.2])
    assert found.value == pytest.approx(math.exp(0.1))
    assert (found.key, found.rows, found.cells) == ("h100", 10, 2)
    assert found.spread == pytest.approx(0.1)
