"""Where parameter gathers and gradient reductions land around a pipeline."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from projector import pipeline
from projector.pipeline.exchange import Exchange, arrival, finish

PLACE = ((0, 2), (1, 3))
PLAIN = Exchange(
    reduce=np.array([1.0, 2.0, 3.0, 4.0]),
    gather=np.array([0.5, 1.0, 0.25, 0.0]),
    optimizer=np.array([2.0, 5.0]),
    overlap_reduce=False,
    overlap_gather=False,
    bucket=0.1,
    contention=0.0,
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


def test_nothing_to_exchange_changes_nothing():
    nothing = replace(PLAIN, reduce=np.zeros(4), gather=np.zeros(4), optimizer=np.zeros(2), overlap_reduce=True)
    assert (arrival(nothing, PLACE, np.ones(4)).release == 0).all()
    assert finish(nothing, line()).ends == pytest.approx(line().rank_end)


def test_a_reduction_longer_than_the_backward_beside_it():
    long = finish(replace(PLAIN, overlap_reduce=True, reduce=np.array([20.0, 0, 0, 0])), line())
    assert long.ends[0] == pytest.approx(line().rank_end[0] + 20.0 - 2.0)  # hidden behind one backward of 2 s
    slowed = finish(replace(PLAIN, overlap_reduce=True, reduce=np.array([20.0, 0, 0, 0]), contention=0.5), line())
    assert slowed.ends[0] == pytest.approx(long.ends[0] + 0.5 * 2.0)


def test_spans_of_one_track_stay_in_order():
    for overlap in (False, True):
        spans = finish(replace(PLAIN, overlap_reduce=overlap), line()).spans
        for rank in range(2):
            own = [span for span in spans if span.rank == rank]
            assert all(a.end <= b.start + 1e-12 for a, b in pairwise(own))
