"""Where parameter gathers and gradient reductions land around a pipeline."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st
from test_schedules import sizes

from projector import pipeline
from projector.pipeline import trace
from projector.pipeline.exchange import Exchange, arrival, finish
from projector.pipeline.exchange import spans as laid
from projector.pipeline.residency import shortened

PLACE = ((0, 2), (1, 3))
PLAIN = Exchange(
    reduce=np.array([1.0, 2.0, 3.0, 4.0]), gather=np.array([0.5, 1.0, 0.25, 0.0]), optimizer=np.array([2.0, 5.0]),
    overlap_reduce=False, overlap_gather=False, last=np.full(4, 0.1), first=np.full(4, 0.1), contention=0.0,
    idle=np.zeros((2, 4)),
)  # fmt: skip


def line(release=None):
    compiled = pipeline.compile("interleaved", 2, 2, 4)
    full = np.ones(4)
    return pipeline.evaluate(compiled, full, full, full, release=release)


def test_all_wait_for_the_slowest_optimizer_when_steps_are_logged():
    start = arrival(PLAIN, PLACE, np.ones(4))
    assert start.base == 6.0  # rank 1: 5 + 1
    assert (start.release == 0).all()
    assert start.gather.tolist() == [0.75, 1.0]


def test_without_a_barrier_a_later_rank_is_ready_later():
    start = arrival(replace(PLAIN, logged=False), PLACE, np.ones(4))
    assert start.base == 2.75
    assert start.release.tolist() == [0, 3.25, 0, 3.25]
    timeline = line(start.release)
    assert timeline.start[timeline.compiled.stage == 1].min() == 3.25


def test_gathers_beside_forwards_expose_their_first_bucket_and_what_is_longer():
    start = arrival(replace(PLAIN, overlap_gather=True), PLACE, np.full(4, 0.6))
    # rank 0: 0.5 − min(0.45, 0.6) = 0.05; then 0.25 of the second chunk after the first's 0.5
    assert start.base == pytest.approx(5.05)
    assert start.release + start.base == pytest.approx([5.05, 5.4, 5.525, 6.0])
    assert start.gather == pytest.approx([0.05, 0.4])


def test_reductions_follow_the_last_action_unless_they_overlap():
    timeline = line()
    after = finish(PLAIN, timeline)
    assert after.ends == pytest.approx(timeline.rank_end + [4.0, 6.0])
    beside = finish(replace(PLAIN, overlap_reduce=True), timeline)
    assert (beside.ends <= after.ends).all()
    assert (beside.ends >= timeline.rank_end).all()
    # chunk 1 of rank 0 is complete long before chunk 0: only chunk 0's last bucket is left
    assert beside.ends[0] == pytest.approx(timeline.rank_end[0] + 0.1)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_last_bucket_waits_for_the_last_backward_and_a_first_forward_for_the_first(share):
    """The rest hides: of a stage that is one bucket nothing does, unless the rank still computes other stages."""
    exchange = replace(PLAIN, overlap_reduce=True, overlap_gather=True, last=np.full(4, share), first=np.full(4, share))
    alone = replace(exchange, reduce=np.array([1.0, 0, 0, 0]), gather=np.array([0.5, 0, 0, 0]))
    assert finish(alone, line()).ends[0] == pytest.approx(line().rank_end[0] + share)
    assert arrival(alone, PLACE, np.ones(4)).gather[0] == pytest.approx(0.5 * share)
    earlier = finish(
        replace(exchange, reduce=np.array([0, 0, 1.0, 0])), line()
    )  # the other chunk of rank 0 computes on
    assert earlier.ends[0] == pytest.approx(line().rank_end[0])
    crowded = replace(exchange, reduce=np.array([0, 0, 1.0, 0]), contention=0.5)
    assert finish(crowded, line()).ends[0] == pytest.approx(line().rank_end[0] + 0.5)  # all of it runs beside compute


def test_nothing_to_exchange_changes_nothing():
    nothing = replace(PLAIN, reduce=np.zeros(4), gather=np.zeros(4), optimizer=np.zeros(2), overlap_reduce=True)
    assert (arrival(nothing, PLACE, np.ones(4)).release == 0).all()
    assert finish(nothing, line()).ends == pytest.approx(line().rank_end)


def test_a_reduction_longer_than_the_backward_beside_it():
    long = finish(replace(PLAIN, overlap_reduce=True, reduce=np.array([20.0, 0, 0, 0])), line())
    assert long.ends[0] == pytest.approx(line().rank_end[0] + 20.0 - 2.0)  # hidden behind one backward of 2 s
    beside = replace(PLAIN, overlap_reduce=True, reduce=np.array([20.0, 0, 0, 0]), contention=0.5)
    assert finish(beside, line()).ends[0] == pytest.approx(long.ends[0])  # the compute ends later, but first still
    short = finish(replace(beside, reduce=np.array([1.5, 0, 0, 0])), line())
    assert short.ends[0] == pytest.approx(line().rank_end[0] + 0.5 * 1.35 + 0.15)
    waiting = finish(replace(beside, reduce=np.array([1.5, 0, 0, 0]), idle=np.full((2, 4), 0.5)), line())
    assert waiting.ends[0] == pytest.approx(short.ends[0] - 0.5)


def test_spans_of_one_track_stay_in_order():
    for overlap in (False, True):
        exchange = replace(PLAIN, overlap_reduce=overlap)
        spans = laid(exchange, arrival(exchange, PLACE, np.ones(4)), finish(exchange, line()), PLACE)
        for rank in range(2):
            own = [span for span in spans if span.rank == rank]
            assert all(a.end <= b.start + 1e-12 for a, b in pairwise(own))


def test_a_shared_tensor_is_summed_once_all_that_hold_it_have_reduced():
    plain = replace(PLAIN, reduce=np.array([1.0, 2.0, 3.0, 9.0]))
    before, after = finish(plain, line()), finish(replace(plain, tied=np.array([2.0, 2.0])), line())
    assert before.ends[0] != before.ends[1]
    assert after.ends.tolist() == [before.ends.max() + 2.0] * 2
    alone = finish(replace(plain, tied=np.array([2.0, 0.0])), line())
    assert alone.ends.tolist() == [before.ends[0] + 2.0, before.ends[1]]


def test_a_batch_is_its_runs_one_by_one():
    draw = np.random.default_rng(3)
    compiled = pipeline.compile("interleaved", 2, 2, 4)
    for overlap, logged in ((False, True), (True, True), (True, False)):
        runs = [
            Exchange(
                reduce=draw.uniform(0, 3, 4), gather=draw.uniform(0, 1, 4), optimizer=draw.uniform(0, 1, 2),
                overlap_reduce=overlap, overlap_gather=overlap, last=draw.uniform(0, 1, 4), first=draw.uniform(0, 1, 4),
                contention=0.1, idle=draw.uniform(0, 0.3, (2, 4)), tied=draw.uniform(0, 3, 2), logged=logged,
            )
            for _ in range(5)
        ]  # fmt: skip
        names = ("reduce", "gather", "optimizer", "last", "first", "idle", "tied")
        batch = replace(runs[0], **{name: np.stack([getattr(run, name) for run in runs]) for name in names})
        forward = draw.uniform(0.5, 2, (5, 4))
        start = arrival(batch, PLACE, forward)
        timeline = pipeline.evaluate(compiled, forward, forward, forward, release=start.release)
        end = finish(batch, timeline)
        for row, run in enumerate(runs):
            alone = arrival(run, PLACE, forward[row])
            assert alone.base == start.base[row]
            assert (alone.release == start.release[row]).all()
            own = pipeline.evaluate(compiled, *[forward[row]] * 3, release=alone.release)
            assert finish(run, own).ends == pytest.approx(end.ends[row], rel=1e-12)
            assert finish(run, own).reduced == pytest.approx(end.reduced[row], rel=1e-12)


# Forwards that run beside the backward of a neighbouring micro-batch, as one action.


@st.composite
def pairings(draw):
    pp, vpp = draw(st.integers(2, 4)), draw(st.integers(2, 3))
    m = pp * draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**31)))
    parts = random.uniform(0.5, 2.0, (3, pp * vpp))
    hidden = random.uniform(0.0, 0.4, (2, pp * vpp))
    hops = random.uniform(0.0, 0.3, pp * vpp - 1)
    return pp, vpp, m, parts, hidden, hops, draw(st.booleans())


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


def test_views_of_pairs():
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


# What is alive: published peaks, and a replay by hand.


def chunks(name, pp, vpp, m):
    return pipeline.peak(pipeline.compile(name, pp, vpp, m), np.ones(pp * vpp)).tolist()


def test_published_peaks():
    assert chunks("1f1b", 4, 1, 8) == [4, 3, 2, 1]
    assert chunks("interleaved", 4, 2, 8) == [11, 9, 7, 5]
    assert chunks("gpipe", 4, 1, 8) == [8] * 4
    assert chunks("looped_bfs", 4, 2, 8) == [16] * 4
    assert chunks("zb_h1", 4, 1, 8) == [4] * 4  # pp everywhere: W comes late (arXiv 2401.10241)
    assert chunks("zb_h2", 4, 1, 8) == [7] * 4  # 2·pp − 1
    assert chunks("zbv", 4, 2, 12) == [8] * 4  # pp micro-batches of two half-size chunks
    assert max(chunks("dualpipe_v", 4, 2, 16)) == 2 * 4 + 1  # one half-size chunk more than ZB-V (DualPipe: PP + 1)


@given(sizes(), st.integers(0, 2**31))
def test_peak_is_a_replay(case, seed):
    compiled = pipeline.compile(*case)
    random = np.random.default_rng(seed)
    kept = random.integers(0, 100, compiled.stages).astype(float)
    early = random.integers(-20, 20, compiled.stages).astype(float)
    schedule = compiled.schedule
    expected, after = [], []
    for rank, order in enumerate(schedule.orders):
        now = top = 0.0
        for kind, chunk, _ in order:
            v = schedule.placement[rank][chunk]
            if schedule.split:
                change = {"F": kept[v], "B": -early[v], "W": early[v] - kept[v]}[kind]
            else:
                change = {"F": kept[v], "B": -kept[v]}[kind]
            top = max(top, now, now + change)
            now += change
            after.append(now)
        assert now == 0
        expected.append(top)
    assert pipeline.resident(compiled, kept, early).tolist() == after
    assert pipeline.peak(compiled, kept, early).tolist() == expected
    many = pipeline.peak(compiled, np.stack([kept, 2 * kept]), early)
    assert many[0].tolist() == expected
    assert (many[1] >= many[0]).all()


@given(sizes())
def test_in_flight_has_every_situation_of_the_replay_once(case):
    name, pp, vpp, m, group, extra = case
    compiled = pipeline.compile(*case)
    met, played = pipeline.in_flight(name, pp, vpp, m, group, extra), pipeline.replay(compiled.schedule)
    assert met.placement == compiled.schedule.placement
    flat = compiled.schedule.flat
    for rank, found in enumerate(met.ranks):
        rows = range(flat.starts[rank], flat.starts[rank + 1])
        walked = dict.fromkeys(
            (flat.kind[i] == 0, flat.chunk[i], *played.alive[i], *played.pending[i]) for i in rows if flat.kind[i] < 2
        )
        columns = (found.forward[:, None], found.chunk[:, None], found.alive, found.pending)
        rows = [tuple(row) for row in np.concatenate(columns, axis=1)]
        if shortened(m, pp, group) == m:
            assert rows == list(walked)
        elif (group or pp) % pp == 0:
            assert _heaviest(rows) == _heaviest(walked)  # what the ends of a longer step add is lighter


def _heaviest(rows):
    return max(sum(row[2:]) + row[0] for row in rows)


def test_wrong_shape():
    refusal(pipeline.peak, pipeline.compile("1f1b", 4, 1, 8), np.ones(3), match="delta_forward")
