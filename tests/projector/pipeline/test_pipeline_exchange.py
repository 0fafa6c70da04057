"""Where parameter gathers and gradient reductions land around a pipeline."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from projector import pipeline
from projector.pipeline.exchange import Exchange, arrival, finish
from projector.pipeline.exchange import spans as laid

PLACE = ((0, 2), (1, 3))
PLAIN = Exchange(
    reduce=np.array([1.0, 2.0, 3.0, 4.0]),
    gather=np.array([0.5, 1.0, 0.25, 0.0]),
    optimizer=np.array([2.0, 5.0]),
    overlap_reduce=False,
    overlap_gather=False,
    last=np.full(4, 0.1),
    first=np.full(4, 0.1),
    contention=0.0,
    idle=np.zeros((2, 4)),
)


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
    assert timeline.first_start("F")[1] == 3.25


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
                reduce=draw.uniform(0, 3, 4),
                gather=draw.uniform(0, 1, 4),
                optimizer=draw.uniform(0, 1, 2),
                overlap_reduce=overlap,
                overlap_gather=overlap,
                last=draw.uniform(0, 1, 4),
                first=draw.uniform(0, 1, 4),
                contention=0.1,
                idle=draw.uniform(0, 0.3, (2, 4)),
                tied=draw.uniform(0, 3, 2),
                logged=logged,
            )
            for _ in range(5)
        ]
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
