"""Hanayo: the snake over the ranks, and what more waves buy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from projector import pipeline
from projector.errors import InputError


def idle(name: str, pp: int, vpp: int, m: int) -> float:
    """Seconds that the busiest wait leaves a rank idle, the whole model's forward of a rank taking one second."""
    forward = np.full(pp * vpp, 1.0 / vpp)
    made = pipeline.evaluate(pipeline.compile(name, pp, vpp, m), forward, forward, forward)
    return float((made.makespan - made.rank_busy).max())


def test_the_snake():
    assert pipeline.build("hanayo", 3, 4, 3).placement == ((0, 5, 6, 11), (1, 4, 7, 10), (2, 3, 8, 9))


@pytest.mark.parametrize("pp", [4, 8])
def test_each_doubling_of_waves_halves_the_bubble_of_an_iteration(pp):
    found = [idle("hanayo", pp, 2 * waves, pp) for waves in (1, 2, 4)]
    assert found[0] < idle("1f1b", pp, 1, pp)
    for fewer, more in pairwise(found):
        assert more == pytest.approx(fewer / 2, rel=0.1)


@pytest.mark.parametrize(("pp", "vpp"), [(4, 2), (4, 4), (8, 2), (8, 4)])
@pytest.mark.parametrize("rounds", [1, 2, 4, 8])
def test_never_worse_than_one_chunk(pp, vpp, rounds):
    assert idle("hanayo", pp, vpp, rounds * pp) <= idle("1f1b", pp, 1, rounds * pp)


def test_an_iteration_keeps_what_1f1b_keeps():
    compiled = pipeline.compile("hanayo", 4, 2, 4)
    assert pipeline.peak(compiled, 0.5).max() == 4  # half-size chunks: four micro-batches, as rank 0 of 1F1B


def test_whole_waves_only():
    with pytest.raises(InputError, match="vpp: found 3, expected a multiple of 2 for hanayo"):
        pipeline.build("hanayo", 4, 3, 4)
