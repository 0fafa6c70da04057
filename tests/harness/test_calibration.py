"""Factors: weighted medians, invariances, and that a held-out factor has not seen the family it serves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import calibration
from harness.calibration import Observation

RATIO = st.floats(-2, 2)


def seen(ratio: float, family: str = "f", key: str = "h100", framework: str = "mlm") -> Observation:
    levels = (key, "arch:hopper", "vendor:nvidia", "all")
    return Observation(run_id="r", family=family, framework=framework, levels=levels, log_ratio=ratio)


@given(st.lists(RATIO, min_size=1, max_size=30))
def test_the_weighted_median_of_equal_weights_is_the_median(values: list[float]) -> None:
    assert calibration.weighted_median(values, np.ones(len(values))) == pytest.approx(np.median(values))


def test_weights_move_the_median() -> None:
    assert calibration.weighted_median([1.0, 2.0, 3.0], [1.0, 1.0, 3.0]) == 3.0
    assert calibration.weighted_median([1.0, 3.0], [2.0, 1.0]) == 1.0


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


def test_held_out_has_not_seen_the_family() -> None:
    rows = [seen(0.0, "a"), seen(0.0, "a"), seen(1.0, "b")]
    levels = rows[0].levels
    held = calibration.held_out(rows, [(levels, "a"), (levels, "b")])
    assert held[levels, "a"].value == pytest.approx(math.e)
    assert held[levels, "b"].value == 1.0
    assert not held[levels, "a"].fallback


@given(st.lists(RATIO, min_size=1, max_size=8), st.lists(RATIO, min_size=1, max_size=8))
def test_held_out_does_not_depend_on_the_rows_it_serves(mine: list[float], others: list[float]) -> None:
    levels = seen(0.0).levels
    rest = [seen(r, "b") for r in others]
    with_mine = calibration.held_out([seen(r, "a") for r in mine] + rest, [(levels, "a")])
    without = calibration.held_out(rest, [(levels, "a")])
    assert with_mine[levels, "a"].value == without[levels, "a"].value


def test_a_lonely_family_falls_back_and_says_so() -> None:
    rows = [seen(0.0, "a"), seen(0.5, "b", key="h200")]
    factor = calibration.held_out(rows, [(rows[0].levels, "a")])[rows[0].levels, "a"]
    assert (factor.key, factor.level, factor.fallback) == ("arch:hopper", 1, True)
    assert factor.value == pytest.approx(math.exp(0.5))


def test_nothing_to_fit_on_leaves_the_projection_alone() -> None:
    only = seen(0.7, "a")
    factor = calibration.held_out([only], [(only.levels, "a")])[only.levels, "a"]
    assert (factor.value, factor.rows, factor.fallback) == (1.0, 0, True)


def test_one_factor_per_finest_key() -> None:
    made = calibration.fit_all([seen(0.0), seen(1.0, key="b200")])
    assert {key: f.value for key, f in made.items()} == {"h100": 1.0, "b200": pytest.approx(math.e)}
