"""Weighted medians and quantiles against NumPy's and SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.calibrate import weights
from harness.score import resample

VALUES = st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 3.0)), min_size=1, max_size=30)


@given(VALUES, st.floats(0.05, 0.95))
def test_quantiles_are_those_of_numpy(pairs: list[tuple[float, float]], level: float) -> None:
    x, w = (np.array(each) for each in zip(*pairs, strict=True))
    share = np.cumsum(w[np.argsort(x, kind="stable")]) / w.sum()
    if np.abs(share - level).min() > 1e-9:  # at a step both neighbours are right
        expected = np.quantile(x, level, weights=w, method="inverted_cdf")
        assert weights.quantile(x, w, level) == pytest.approx(expected, abs=1e-12)


@given(VALUES)
def test_the_median_lies_between_the_quantiles_about_it(pairs: list[tuple[float, float]]) -> None:
    x, w = (np.array(each) for each in zip(*pairs, strict=True))
    low, high = (float(np.quantile(x, at, weights=w, method="inverted_cdf")) for at in (0.5 - 1e-6, 0.5 + 1e-6))
    assert low - 1e-12 <= weights.median(x, w) <= high + 1e-12


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 4)), min_size=1, max_size=30))
def test_a_macro_mean_is_the_mean_of_the_means_of_cells(pairs: list[tuple[float, int]]) -> None:
    x, cells = zip(*pairs, strict=True)
    means = [np.mean([v for v, c in pairs if c == cell]) for cell in set(cells)]
    assert weights.macro(x, cells) == pytest.approx(float(np.mean(means)), abs=1e-12)


def test_the_bootstrap_is_the_percentile_bootstrap_of_scipy() -> None:
    """Other draws, so only as close as two thousand of them are."""
    values = np.random.default_rng(1).normal(0.2, 1.0, 60)
    found = resample.of_mean(values.tolist())
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, confidence_level=0.9, method="percentile", rng=2
    ).confidence_interval
    assert found == pytest.approx((expected.low, expected.high), abs=0.03)
