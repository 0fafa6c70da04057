"""Factors: weighted medians and their invariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.calibrate import calibration, weights
from harness.calibrate.calibration import Observation

RATIO = st.floats(-2, 2)


def seen(ratio: float, family: str = "f", key: str = "h100", framework: str = "mlm") -> Observation:
    levels = (key, "arch:hopper", "vendor:nvidia", "all")
    return Observation(run_id="r", family=family, framework=framework, levels=levels, log_ratio=ratio)


@given(st.lists(RATIO, min_size=1, max_size=30))
def test_the_weighted_median_of_equal_weights_is_the_median(values: list[float]) -> None:
    assert weights.median(values, np.ones(len(values))) == pytest.approx(np.median(values))


def test_weights_move_the_median() -> None:
    assert weights.median([1.0, 2.0, 3.0], [1.0, 1.0, 3.0]) == 3.0
    assert weights.median([1.0, 3.0], [2.0, 1.0]) == 1.0


@given(st.lists(RATIO, min_size=1, max_size=20), RATIO)
def test_scaling_every_projection_scales_the_factor_back(ratios: list[float], shift: float) -> None:
    once = calibration.factor_of([seen(r) for r in ratios], "k")
    moved = calibration.factor_of([seen(r + shift) for r in ratios], "k")
    assert moved.value == pytest.approx(once.value * math.exp(shift))
    assert moved.spread == pytest.approx(once.spread)


def test_every_cell_weighs_the_same() -> None:
    crowd = [seen(0.0, "big")] * 99 + [seen(1.0, "a"), seen(1.0, "b")]
    assert calibration.factor_of(crowd, "k").value == pytest.approx(math.e)
    assert calibration.factor_of(crowd, "k").cells == 3


def test_the_mean_factor_is_over_cells_and_its_spread_is_what_is_left() -> None:
    rows = [seen(0.0, "a")] * 9 + [seen(0.4, "b")]
    found = calibration.mean_factor(rows, [0.0] * 9 + [0.2])
    assert found.value == pytest.approx(math.exp(0.1))
    assert (found.key, found.rows, found.cells) == ("h100", 10, 2)
    assert found.spread == pytest.approx(0.1)
