"""Forwards that run beside the backward of a neighbouring micro-batch, as one action."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector import pipeline
from projector.errors import InputError
from projector.pipeline import trace


@st.composite
def pairings(draw):
    pp, vpp = draw(st.integers(2, 4)), draw(st.integers(2, 3))
    m = pp * draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**31)))
    parts = random.uniform(0.5, 2.0, (3, pp * vpp))
    hidden = random.uniform(0.0, 0.4, (2, pp * vpp))
    hops = random.uniform(0.0, 0.3, pp * vpp - 1)
    return pp, vpp, m, parts, hidden, hops, draw(st.booleans())


@settings(max_examples=60, deadline=None)
@given(pairings())
def test_pairs_between_their_bounds(drawn):
    pp, vpp, m, parts, hidden, hops, overlap = drawn
    alone = pipeline.compile("interleaved", pp, vpp, m, None, 1)
    paired = pipeline.compile("interleaved", pp, vpp, m, None, 1, paired=True)
    apart = pipeline.evaluate(alone, *parts, hops, overlap_p2p=overlap)
    nothing = pipeline.evaluate(paired, *parts, hops, overlap_p2p=overlap)
    if overlap:  # waiting for two inputs and handing on both results at the end can only delay
        assert nothing.makespan >= apart.makespan * (1 - 1e-12)
    saving = pipeline.evaluate(paired, *parts, hops, overlap_p2p=overlap, hidden=tuple(hidden))
    assert saving.makespan <= nothing.makespan * (1 + 1e-12)
    bare = (parts[0] - hidden[0], parts[1] - hidden[1], parts[2])
    assert saving.makespan >= pipeline.lower_bound(paired.schedule.placement, m, *bare, hops) * (1 - 1e-12)
    assert saving.start + saving.duration == pytest.approx(saving.end)
    forward, backward = paired.pairs
    saved = hidden[0][paired.stage[forward]] + hidden[1][paired.stage[backward]]
    assert apart.rank_busy.sum() - saving.rank_busy.sum() == pytest.approx(saved.sum())
    batch = pipeline.evaluate(paired, np.stack([parts[0]] * 2), *parts[1:], hops, overlap, hidden=tuple(hidden))
    assert np.allclose(batch.end[1], saving.end)
    assert np.allclose(batch.at(0).start, saving.start)
    assert float(batch.at(1).makespan) == pytest.approx(float(saving.makespan))


@settings(max_examples=40, deadline=None)
@given(pairings())
def test_what_pairs(drawn):
    pp, vpp, m, *_ = drawn
    paired = pipeline.compile("interleaved", pp, vpp, m, None, 1, paired=True)
    forward, backward = paired.pairs
    assert (paired.kind[forward] == 0).all()
    assert (paired.kind[backward] == 1).all()
    assert (paired.rank[forward] == paired.rank[backward]).all()
    assert (paired.before[backward] == forward).all()
    different = (paired.stage[forward] != paired.stage[backward]) | (
        paired.microbatch[forward] != paired.microbatch[backward]
    )
    assert different.all()
    for rank in range(pp):  # everything between warm-up and flush: one forward more ahead than usual
        warmup = min(m * vpp, 2 * (pp - rank - 1) + (vpp - 1) * pp + 1)
        steady = m * vpp - warmup
        assert (paired.rank[forward] == rank).sum() == (steady if steady > 1 else 0)


def test_by_hand():
    # one rank after the other; rank 1 runs F1 beside B0 and F2 beside B1 once it is one forward ahead
    compiled = pipeline.compile("1f1b", 2, 1, 3, None, 1, paired=True)
    ones = np.ones(2)
    line = pipeline.evaluate(compiled, ones, ones, 0 * ones, hidden=(0.25 * ones, 0.25 * ones))
    on_last = {(int(k), int(i)): float(e) for k, i, e, r in zip(
        compiled.kind, compiled.microbatch, line.end, compiled.rank, strict=True) if r == 1}  # fmt: skip
    assert on_last[0, 0] == 2.0  # F0
    assert on_last[0, 1] == on_last[1, 0] == 3.5  # F1 beside B0: 1 + 1 − 0.5
    assert on_last[0, 2] == on_last[1, 1]  # F2 beside B1
    assert on_last[1, 2] == on_last[0, 2] + 1  # the last backward is alone


def test_dualpipe_pairs_too():
    compiled = pipeline.compile("dualpipe_v", 4, 2, 16, paired=True)
    assert len(compiled.pairs[0]) > 0
    ones = np.ones(8)
    beside = pipeline.evaluate(compiled, ones, ones, ones, hidden=(0.3 * ones, 0.3 * ones))
    apart = pipeline.evaluate(pipeline.compile("dualpipe_v", 4, 2, 16), ones, ones, ones)
    assert beside.makespan < apart.makespan


def test_views_of_pairs(tmp_path):
    compiled = pipeline.compile("interleaved", 2, 2, 4, None, 1, paired=True)
    ones = np.full(4, 1e-3)
    line = pipeline.evaluate(compiled, ones, ones, ones, hidden=(0.1 * ones, 0.1 * ones))
    start, end = line.shown
    assert (end - start > 0).all()  # forward and backward of a pair are both to be seen
    events = [event for event in trace.events(line) if event["ph"] == "X"]
    assert all(event["dur"] > 0 for event in events)
    assert sum(event["dur"] for event in events if event["pid"] == 0) == pytest.approx(line.rank_busy[0] * 1e6)


def test_too_few_forwards_ahead_pair_nothing():
    from projector.pipeline.compiler import compile_schedule
    from projector.pipeline.types import Action, Schedule, loop_placement

    F, B = (Action("F", 0, i) for i in range(2)), (Action("B", 0, i) for i in range(2))
    f0, f1, b0, b1 = *F, *B
    tight = Schedule("x", 2, 1, 2, False, ((f0, f1, b0, b1), (f0, b0, f1, b1)), loop_placement(2, 1))
    assert compile_schedule(tight, paired=True).size == 8


def test_wrong_savings():
    compiled = pipeline.compile("interleaved", 2, 2, 4, paired=True)
    with pytest.raises(InputError, match="hidden backward"):
        pipeline.evaluate(compiled, *np.ones((3, 4)), hidden=(np.ones(4), np.ones(3)))
