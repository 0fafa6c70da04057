"""What a projection without error would score."""

from __future__ import annotations

import numpy as np
import pytest

from harness.score.ceiling import ceiling, repeats
from harness.score.changes import Pair


def _pair(publisher: str, measured: float, kinds: frozenset[str] = frozenset()) -> Pair:
    return Pair(first="a", second="b", publisher=publisher, group="", kinds=kinds, measured=measured, projected=1.0)


def test_a_measurement_that_repeats_exactly_leaves_a_perfect_order_and_noise_takes_it_away(make_row, framed) -> None:
    rows = framed([make_row(f"r{i}", 100.0 * 1.03**i, 90.0 * 1.03**i) for i in range(6)])
    found = [ceiling(rows, spread) for spread in (0.0, 0.01, 0.03, 0.3, 10.0)]
    assert all(of is not None for of in found)
    lows, highs = ([getattr(of, end) for of in found] for end in ("low", "high"))
    assert lows[0] == highs[0] == pytest.approx(1.0)
    assert lows == sorted(lows, reverse=True)
    assert highs == sorted(highs, reverse=True)
    assert all(low <= high for low, high in zip(lows, highs, strict=True))
    assert highs[1] > highs[2] > highs[3]
    assert abs(lows[-1]) < 0.25, "noise alone orders nothing"


def test_the_spread_is_that_of_one_measurement_and_a_source_counts_once() -> None:
    generator = np.random.default_rng(1)
    drawn = np.exp(0.03 * (generator.standard_normal(4000) - generator.standard_normal(4000)))
    found = repeats([_pair("a", m) for m in drawn])
    assert found == (pytest.approx(0.03, rel=0.06), 4000, 1)
    many = repeats(
        [*(_pair("a", m) for m in drawn), _pair("b", 1.1), _pair("c", 1.2), _pair("d", 9.0, frozenset({"tp"}))]
    )
    assert many == (pytest.approx(np.log(1.1) / (0.67449 * 2**0.5)), 4002, 3)
    assert repeats([_pair("d", 9.0, frozenset({"tp"}))]) is None
