"""How many micro-batches are alive on a rank: closed forms of the published schedules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.errors import InputError
from projector.pipeline import build, in_flight, peak
from projector.pipeline.compiler import compile_schedule
from projector.pipeline.residency import shortened


@given(st.integers(1, 8), st.integers(1, 200))
def test_1f1b_holds_pp_minus_rank(pp: int, m: int) -> None:
    for rank, met in enumerate(in_flight("1f1b", pp, 1, m, None, 0).ranks):
        assert met.alive.sum(axis=1).max() == min(m, pp - rank)


@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (4, 2), (4, 4), (8, 3)])
@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_interleaved_holds_the_published_number_of_chunks(pp: int, vpp: int, rounds: int) -> None:
    """min(m·v, 2(p − r − 1) + (v − 1)·p + 1) (Megatron-LM core/pipeline_parallel/schedules.py)."""
    m = pp * rounds
    for rank, met in enumerate(in_flight("interleaved", pp, vpp, m, None, 0).ranks):
        # a forward counts itself only afterwards
        most = max(total + forward for total, forward in zip(met.alive.sum(axis=1), met.forward, strict=True))
        assert most == min(m * vpp, 2 * (pp - rank - 1) + (vpp - 1) * pp + 1)


@given(st.integers(1, 3000), st.integers(1, 16), st.sampled_from([None, 4, 24]))
def test_shortening_keeps_the_remainder(m: int, pp: int, group: int | None) -> None:
    kept = shortened(m, pp, group)
    assert kept <= m
    assert (m - kept) % (group or pp) == 0
    if kept < m:
        assert kept >= 4 * pp


@pytest.mark.parametrize(("name", "vpp"), [("1f1b", 1), ("interleaved", 2), ("zb_h1", 1), ("zbv", 2)])
def test_shortening_loses_no_situation(name: str, vpp: int) -> None:
    pp, m = 4, 60
    whole = peak(compile_schedule(build(name, pp, vpp, m)), 1.0)
    for most, met in zip(whole, in_flight(name, pp, vpp, m, None, 0).ranks, strict=True):
        assert ((met.alive + met.pending).sum(axis=1) + met.forward).max() == most


def test_an_unknown_schedule_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(InputError, match="1f1b"):
        in_flight("1f1c", 4, 1, 8, None, 0)
