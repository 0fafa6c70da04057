"""Closed forms, bounds and agreement with a naive simulator."""

import numpy as np
import pytest
from asked import refusal
from hypothesis import given
from hypothesis import strategies as st
from naive_pipeline import simulate
from test_schedules import sizes

from projector import pipeline
from projector.errors import InputError
from projector.pipeline import KINDS, periodic
from projector.pipeline.bounds import lower_bound
from projector.pipeline.types import loop_placement, snake_placement


def times(name, pp, vpp, m, forward=1.0, backward=1.0, weight=1.0, group=None, **more):
    compiled = pipeline.compile(name, pp, vpp, m, group)
    full = np.ones(pp * vpp)
    return pipeline.evaluate(compiled, forward * full, backward * full, weight * full, **more)


GRID = [(pp, m) for pp in (1, 2, 3, 4, 8) for m in (1, 2, 4, 5, 8, 24)]


@pytest.mark.parametrize(("pp", "m"), GRID)
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_1f1b_and_gpipe_closed_form(name, pp, m):
    line = times(name, pp, 1, m, 0.75, 0.5, 1.25)
    assert line.makespan == pytest.approx((m + pp - 1) * 2.5)
    assert line.rank_busy == pytest.approx(np.full(pp, m * 2.5))
    assert line.bubble == pytest.approx((pp - 1) / (m + pp - 1))


def test_totals_of_another_simulator():
    # Primus' pipeline simulator on F = 1, B = 2: where each rank ends
    assert times("1f1b", 4, 1, 8).makespan == 33
    assert times("interleaved", 4, 2, 8).rank_end.tolist() == [57, 55, 53, 51]
    assert times("zbv", 4, 2, 12).makespan == 75


@pytest.mark.parametrize("pp", [2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_zero_bubble_closed_forms(pp, rounds):
    m = pp * rounds
    h1, h2, zbv = times("zb_h1", pp, 1, m), times("zb_h2", pp, 1, m), times("zbv", pp, 2, m)
    assert h1.makespan == h2.makespan == 3 * m + pp - 1  # the last rank starts pp − 1 late: no order is shorter
    assert zbv.bubble_of_span == pytest.approx(np.zeros(pp))
    assert zbv.makespan == 6 * m + pp - 1


@pytest.mark.parametrize("pp", [4, 6, 8, 16])
@pytest.mark.parametrize("name", ["v_half", "v_min"])
def test_memory_saving_schedules_still_beat_1f1b(name, pp):
    m = 4 * pp
    assert float(times(name, pp, 2, m).makespan) < float(times("1f1b", pp, 1, m, 2.0, 2.0, 2.0).makespan)


@st.composite
def cases(draw):
    case = draw(sizes())
    stages = case[1] * case[2]
    seconds = st.floats(0, 5, allow_subnormal=False)
    vectors = [draw(st.lists(seconds, min_size=stages, max_size=stages)) for _ in range(4)]
    p2p = draw(st.lists(seconds, min_size=stages - 1, max_size=stages - 1))
    return case, vectors, p2p, draw(st.booleans()), draw(st.booleans())


@given(cases())
def test_agrees_with_the_naive_simulator(drawn):
    case, (forward, backward, weight, release), p2p, overlap, released = drawn
    compiled = pipeline.compile(*case)
    more = {"release": release} if released else {}
    line = pipeline.evaluate(compiled, forward, backward, weight, p2p, overlap_p2p=overlap, **more)
    ends = simulate(compiled.schedule, forward, backward, weight, p2p, overlap, release if released else None)
    keys = zip(compiled.kind, compiled.stage, compiled.microbatch, strict=True)
    assert line.end == pytest.approx(np.asarray([ends[KINDS[k], s, i] for k, s, i in keys]))
    assert line.start + line.duration == pytest.approx(line.end)
    batch = pipeline.evaluate(compiled, [forward] * 2, [backward] * 2, weight, p2p, overlap_p2p=overlap, **more)
    for row in range(2):
        assert np.array_equal(batch.end[row], line.end)
        assert np.array_equal(batch.at(row).start, line.start)
    assert np.array_equal(batch.rank_busy[1], line.rank_busy)
    assert np.array_equal(batch.last_backward[0], line.last_backward)


@given(cases())
def test_no_schedule_is_slower_than_everything_one_after_the_other(drawn):
    case, (forward, backward, weight, _), p2p, overlap, _ = drawn
    compiled = pipeline.compile(*case)
    line = pipeline.evaluate(compiled, forward, backward, weight, p2p, overlap_p2p=overlap)
    m, total, tolerance = case[3], np.add(backward, weight), 1e-9
    one = np.add(forward, total)
    own = [compiled.schedule.each * one[list(stages)].sum() for stages in compiled.schedule.placement]
    assert line.rank_busy == pytest.approx(np.asarray(own))
    crossing = sum(np.asarray(p2p)[np.diff([rank for rank, _ in compiled.schedule.home]) != 0])
    serial = m * (one.sum() + 4 * crossing) * (1 if overlap else 2)
    assert line.makespan <= serial + tolerance + (0 if overlap else 8 * len(compiled.rank) * max(p2p, default=0))
    assert (line.rank_span >= line.rank_busy - tolerance).all()


def test_blocking_messages_cost_twice_a_microbatch():
    # in steady state a middle rank waits once after its F and once after its B
    m, hop = 64, 0.1
    hidden = times("1f1b", 4, 1, m, p2p=hop, overlap_p2p=True)
    blocking = times("1f1b", 4, 1, m, p2p=hop)
    assert float(blocking.makespan - times("1f1b", 4, 1, m).makespan) == pytest.approx(2 * m * hop, rel=0.1)
    assert float(hidden.makespan) < float(blocking.makespan)


def test_exposed_warmup_and_flush_lie_between_hidden_and_blocking():
    hidden = times("interleaved", 4, 2, 16, p2p=0.2, overlap_p2p=True)
    exposed = times("interleaved", 4, 2, 16, p2p=0.2, overlap_p2p=True, overlap_warmup_flush=False)
    blocking = times("interleaved", 4, 2, 16, p2p=0.2)
    assert (hidden.end <= exposed.end).all()
    assert (exposed.end <= blocking.end).all()
    assert hidden.end.sum() < exposed.end.sum() < blocking.end.sum()
    steady = exposed.compiled.steady
    assert (exposed.blocked[steady] == 0).all()
    assert exposed.blocked[~steady].sum() > 0


def test_nothing_takes_time():
    line = times("1f1b", 2, 1, 2, 0.0, 0.0, 0.0)
    assert (line.makespan, line.bubble) == (0, 0)


def test_last_ends():
    line = times("1f1b", 4, 1, 8)
    assert line.last_end("B").tolist() == [33, 31, 29, 27]
    assert line.last_backward.tolist() == [33, 31, 29, 27]
    split = times("zbv", 4, 2, 8)
    assert (split.last_backward >= split.last_end("B")).all()
    assert split.last_end("W").max() == split.makespan


def test_bad_durations_all_at_once():
    compiled = pipeline.compile("1f1b", 4, 1, 8)
    with pytest.raises(InputError) as caught:
        pipeline.evaluate(compiled, np.ones(3), -np.ones(4), np.full(4, np.nan), np.ones(9), release=np.ones((2, 2, 2)))
    assert [problem.key for problem in caught.value.problems] == [
        "forward", "backward_input", "backward_weight", "p2p", "release"
    ]  # fmt: skip
    refusal(pipeline.evaluate, compiled, np.ones((2, 4)), np.ones((3, 4)), np.ones(4), match="one batch size")


# The bound that prunes a search is never above what a schedule takes, and is met where schedules are optimal.


@given(cases())
def test_no_schedule_is_faster(drawn):
    case, (forward, backward, weight, _), p2p, overlap, _ = drawn
    compiled = pipeline.compile(*case)
    line = pipeline.evaluate(compiled, forward, backward, weight, p2p, overlap_p2p=overlap)
    schedule = compiled.schedule
    least = lower_bound(schedule.placement, schedule.microbatches, forward, backward, weight, p2p, schedule.split)
    assert least <= float(line.makespan) * (1 + 1e-12) + 1e-12


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
@pytest.mark.parametrize("m", [1, 4, 16])
def test_met_by_optimal_schedules(pp, m):
    ones = np.ones(pp)
    assert lower_bound(loop_placement(pp, 1), m, ones, ones, ones) == 3 * (m + pp - 1)  # 1F1B
    if m >= pp:
        assert lower_bound(loop_placement(pp, 1), m, ones, ones, ones, split=True) == 3 * m + pp - 1  # ZB-H1
    if m >= 2 * pp:
        both = np.ones(2 * pp)
        assert lower_bound(snake_placement(pp), m, both, both, both, split=True) == 6 * m + pp - 1  # ZB-V


def test_a_batch_and_messages():
    ones = np.ones((3, 4)) * np.asarray([[1.0], [2.0], [3.0]])
    alone = lower_bound(loop_placement(4, 1), 8, ones, ones, ones)
    assert alone.tolist() == [33, 66, 99]
    assert (lower_bound(loop_placement(4, 1), 8, ones, ones, ones, 0.5) == alone + 2 * 3 * 0.5).all()


# Long schedules from short ones: exactly the whole schedule, or not at all.

SIZES = (
    ("1f1b", 2, 1, None),
    ("1f1b", 5, 1, None),
    ("interleaved", 2, 3, None),
    ("interleaved", 3, 2, 5),
    ("zb_h1", 2, 1, None),
    ("zb_h1", 5, 1, None),
    ("zbv", 3, 2, None),
    ("zbv", 5, 2, None),
)


@pytest.mark.parametrize(("name", "pp", "vpp", "group"), SIZES)
@pytest.mark.parametrize("overlaps", [(True, True), (True, False), (False, False)])
def test_a_short_schedule_ends_as_the_long_one_does(
    name: str, pp: int, vpp: int, group: int | None, overlaps: tuple[bool, bool]
) -> None:
    random, stages = np.random.default_rng(pp), pp * vpp
    even = np.ones((2, stages)) + [[0.0], [1e-4]] * random.random(stages)
    stages_of = np.concatenate([even, np.exp(random.normal(size=(30, stages)))])
    messages = np.concatenate([np.zeros((2, stages - 1)), random.random((30, stages - 1))])
    release = random.random((32, stages))
    for microbatches in (17 * (group or pp), 40 * (group or pp), 61 * pp + 1 if vpp == 1 else 61 * (group or pp)):
        short = periodic.shorter(name, pp, vpp, microbatches, group)
        assert short is not None
        assert short < microbatches

        def played(number: int) -> pipeline.Timeline:
            compiled = pipeline.compile(name, pp, vpp, number, group)
            times = stages_of, 2.0 * stages_of[::-1], (0.5 if name.startswith("zb") else 0.0) * stages_of
            return pipeline.evaluate(compiled, *times, messages, *overlaps, release=release)

        some, every = played(short), played(microbatches)
        later = periodic.later(some, np.full(32, microbatches), group)
        said = np.isfinite(later)
        assert said.mean() > 0.5
        assert said[0]
        for figure in ("makespan", "rank_end", "last_backward"):
            ends, whole = getattr(some, figure)[said], getattr(every, figure)[said]
            moved = ends + later[said].reshape(-1, *[1] * (ends.ndim - 1))
            np.testing.assert_allclose(moved, whole, rtol=1e-11)


def test_orders_that_are_not_known_to_repeat_are_not_cut() -> None:
    assert periodic.shorter("zb_h2", 4, 1, 4096, None) is None
    assert periodic.shorter("1f1b", 1, 1, 4096, None) is None
    assert periodic.shorter("1f1b", 4, 1, 13, None) is None
    assert periodic.shorter("1f1b", 4, 1, 14, None) == 12
