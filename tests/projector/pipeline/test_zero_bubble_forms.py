"""Closed forms of split schedules where weight gradients are no longer than input gradients, and what they promise."""

from __future__ import annotations

from math import isclose

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedules import sizes

from projector import pipeline

GRID = [(pp, rounds * pp) for pp in (2, 3, 4, 8) for rounds in (2, 3)]
TIMES = [(1, 1, 1), (1, 1.25, 0.75), (1, 1.25, 0.5), (1, 2, 1), (1, 1.5, 1)]


def waits(name, pp, vpp, m, seconds):
    """Seconds that rank 0 waits inside its own span, for one hop between ranks."""
    timeline = pipeline.evaluate(pipeline.compile(name, pp, vpp, m), *(np.full(pp * vpp, part) for part in seconds))
    return float(timeline.rank_span[0] - timeline.rank_busy[0]) / (pp - 1)


@pytest.mark.parametrize(("pp", "m"), GRID)
@pytest.mark.parametrize("seconds", TIMES)
def test_zb_h1_and_h2(pp, m, seconds):
    # Qi et al., table 2: (p − 1)(F + B − W) and (p − 1)(F + B − 2W)
    forward, backward, weight = seconds
    for name, expected in (("zb_h1", forward + backward - weight), ("zb_h2", forward + backward - 2 * weight)):
        assert waits(name, pp, 1, m, seconds) == pytest.approx(max(0.0, expected)), name


@pytest.mark.parametrize(("pp", "m"), GRID)
@pytest.mark.parametrize("seconds", TIMES)
def test_greedy_orders_reach_the_same(pp, m, seconds):
    costs = pipeline.Costs.equal(pp, *seconds)
    for name, written in (("zb_1p", "zb_h1"), ("zb_2p", "zb_h2")):
        made = pipeline.evaluate(pipeline.compile(name, pp, 1, m, costs=costs), *(np.full(pp, s) for s in seconds))
        by_hand = pipeline.evaluate(pipeline.compile(written, pp, 1, m), *(np.full(pp, s) for s in seconds))
        assert float(made.makespan) <= float(by_hand.makespan) * (1 + 1e-12)


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_zbv_has_no_bubble_for_equal_times(pp):
    assert waits("zbv", pp, 2, 3 * pp, (1, 1, 1)) == 0
    assert waits("zbv", pp, 2, 3 * pp, (1, 2, 1)) > 0  # and has one where B is longer: equal times are an assumption


@pytest.mark.parametrize("seconds", [(1.0, 2.0), (0.5, 0.75), (3.0, 1.0)])
@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (4, 2), (4, 3), (8, 4)])
def test_interleaved_with_unequal_forward_and_backward(pp, vpp, seconds):
    forward, backward = seconds
    full = np.ones(pp * vpp)
    compiled = pipeline.compile("interleaved", pp, vpp, 3 * pp)
    line = pipeline.evaluate(compiled, forward * full, backward * full, 0 * full)
    assert line.makespan == pytest.approx((3 * pp * vpp + pp - 1) * (forward + backward))
    assert line.bubble == pytest.approx((pp - 1) / (3 * pp * vpp + pp - 1))


PROMISES = {  # chunks alive on the fullest rank; a rank of a V holds two half-size chunks a micro-batch
    "gpipe": lambda pp, vpp, m, group: m,
    "looped_bfs": lambda pp, vpp, m, group: m * vpp,
    "1f1b": lambda pp, vpp, m, group: pp,
    "interleaved": lambda pp, vpp, m, group: 2 * (pp - 1) + (vpp - 1) * max(pp, group or pp) + 1,
    "zb_h1": lambda pp, vpp, m, group: pp,
    "zb_h2": lambda pp, vpp, m, group: 2 * pp - 1,
    "zb_1p": lambda pp, vpp, m, group: pp,
    "zb_2p": lambda pp, vpp, m, group: 2 * pp,
    "interleaved_zb": lambda pp, vpp, m, group: (vpp - 1) * max(pp, group or pp) + pp,
    "zbv": lambda pp, vpp, m, group: 2 * pp,
    "v_half": lambda pp, vpp, m, group: 2 * (pp // 2 + 1),
    "v_min": lambda pp, vpp, m, group: 2 * ((pp + 1) // 3 + 1),
    "dualpipe_v": lambda pp, vpp, m, group: 2 * pp + 1,
    "dualpipe": lambda pp, vpp, m, group: pp + 1,
    "v_1f1b": lambda pp, vpp, m, group: 2 * (2 * pp // 3 + 1),
    "hanayo": lambda pp, vpp, m, group: min(m, 2 * pp) * vpp,
}


def test_every_schedule_promises():
    assert set(PROMISES) == set(pipeline.names())


@settings(max_examples=150, deadline=None)
@given(sizes())
def test_memory_in_flight_keeps_the_promise(case):
    name, pp, vpp, m, group, extra = case
    most = float(pipeline.peak(pipeline.compile(*case), 1.0).max())
    promised = PROMISES[name](pp, vpp, m, group) + (extra if "zb" in name or "1f1b" in name or "inter" in name else 0)
    assert most <= min(promised if vpp > 1 or name != "interleaved_zb" else pp + extra, m * vpp)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 14), st.integers(0, 2**31))
def test_greedy_keeps_its_limit_for_any_times(pp, m, seed):
    random = np.random.default_rng(seed)
    parts = [tuple(part) for part in random.uniform(0.0, 3.0, (3, pp)).tolist()]
    costs = pipeline.Costs(*parts, tuple(random.uniform(0.0, 0.5, pp - 1).tolist()))
    for name, limit in (("zb_1p", pp), ("zb_2p", 2 * pp)):
        compiled = pipeline.compile(name, pp, 1, m, costs=costs)
        whole, half = (pipeline.peak(compiled, 1.0, released_by_input=part).max() for part in (0.0, 0.5))
        assert whole <= limit or (name == "zb_2p" and half <= limit)
        line = pipeline.evaluate(compiled, *parts, costs.p2p, overlap_p2p=True)
        least = pipeline.lower_bound(compiled.schedule.placement, m, *parts, costs.p2p, split=True)
        assert float(line.makespan) >= float(least) or isclose(float(line.makespan), float(least))
