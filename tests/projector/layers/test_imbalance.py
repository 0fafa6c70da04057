"""Loads of experts and ranks under a stated distribution."""

from __future__ import annotations

import random
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.mechanisms.dispatch.imbalance import expert_loads, fullest_rank, kept_share


def test_forced_balance_and_one_rank_are_even() -> None:
    assert fullest_rank(0.0, 8, 64, 1e4) == 1.0
    assert fullest_rank(0.5, 8, 1, 1e4) == 1.0
    assert expert_loads(0.0, 4) == (1.0,) * 4


@pytest.mark.parametrize(("experts", "ranks"), [(8, 8), (4, 64), (32, 8)])
def test_the_fullest_rank_is_what_a_draw_of_loads_gives(experts: int, ranks: int) -> None:
    dice, dispersion, trials = random.Random(7), 0.2, 2000
    total = 0.0
    for _ in range(trials):
        loads = [sum(max(0.0, dice.gauss(1.0, dispersion)) for _ in range(experts)) for _ in range(ranks)]
        total += max(loads) * ranks / sum(loads)
    assert fullest_rank(dispersion, experts, ranks, 1e9) == pytest.approx(total / trials, rel=0.01)


def test_few_rows_are_uneven_even_when_experts_are_alike() -> None:
    """Multinomial noise: 1/√rows on top of what the router does."""
    assert fullest_rank(1e-9, 8, 8, 100.0) == pytest.approx(1.0 + 1.42 * sqrt(1 / 100) * sqrt(7 / 8), rel=0.01)


@given(st.floats(0.01, 2.0), st.integers(1, 64))
def test_loads_average_to_one_and_fall(dispersion: float, experts: int) -> None:
    loads = expert_loads(dispersion, experts)
    assert sum(loads) == pytest.approx(experts)
    assert list(loads) == sorted(loads, reverse=True)


def test_a_larger_capacity_drops_less() -> None:
    shares = [kept_share(1.0, 256, factor) for factor in (0.5, 1.0, 1.5, 4.0, 100.0)]
    assert shares == sorted(shares)
    assert shares[0] <= 0.5
    assert shares[-1] == pytest.approx(1.0)


def test_more_experts_on_a_rank_even_it_out_and_more_ranks_do_not() -> None:
    assert fullest_rank(1.0, 32, 8, 1e6) < fullest_rank(1.0, 8, 8, 1e6) < fullest_rank(1.0, 8, 32, 1e6)
