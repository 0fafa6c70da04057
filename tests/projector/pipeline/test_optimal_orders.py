"""The optimum of small cases: within its limit, above every bound, and beaten by no schedule of the same memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector import pipeline
from projector.errors import InputError
from projector.pipeline.compiler import compile_schedule
from projector.pipeline.optimal import LARGEST, improve

ONE_CHUNK = ("1f1b", "gpipe", "zb_h1", "zb_h2", "zb_1p", "zb_2p")


def makespan(schedule, costs):
    parts = (costs.forward, costs.backward_input, costs.backward_weight, costs.p2p)
    return float(pipeline.evaluate(compile_schedule(schedule), *parts, overlap_p2p=True).makespan)


def uneven(pp, seed, hop=0.0):
    """Times in steps of a tenth, so that a solver's tolerance cannot decide."""
    parts = np.random.default_rng(seed).integers(5, 20, (3, pp)) / 10
    return pipeline.Costs(*(tuple(part) for part in parts.tolist()), (hop,) * (pp - 1))


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 3), st.integers(2, 4), st.integers(0, 1000), st.sampled_from([0.0, 0.2]))
def test_no_schedule_beats_it(pp, m, seed, hop):
    costs = uneven(pp, seed, hop)
    best = {}
    for split in (False, True):
        for limit in (pp, 2 * pp - 1, 2 * pp):
            start = pipeline.build("zb_1p" if split else "1f1b", pp, 1, m)
            best[split, limit] = improve(start, costs, [limit] * pp, seconds=5)
    for name in ONE_CHUNK:
        schedule = pipeline.build(name, pp, 1, m, costs=costs)
        held = int(pipeline.peak(compile_schedule(schedule), 1.0).max())
        for (split, limit), found in best.items():
            if split == schedule.split and held <= limit:
                assert found.bound <= makespan(schedule, costs) * (1 + 1e-9), (name, limit)
                if found.proven:
                    assert found.makespan <= makespan(schedule, costs) * (1 + 1e-6), (name, limit)


@pytest.mark.parametrize(("name", "pp", "vpp", "m"), [("zb_h1", 3, 1, 4), ("interleaved", 2, 2, 4), ("zbv", 2, 2, 3)])
def test_within_limit_bounds_and_never_worse(name, pp, vpp, m):
    start = pipeline.build(name, pp, vpp, m)
    costs = pipeline.Costs.equal(pp * vpp, 1.0, 1.3, 0.6)
    found = improve(start, costs, seconds=4)
    assert found.makespan <= makespan(start, costs)
    assert found.makespan == pytest.approx(makespan(found.schedule, costs))
    assert (pipeline.peak(compile_schedule(found.schedule), 1.0) <= pipeline.peak(compile_schedule(start), 1.0)).all()
    parts = (costs.forward, costs.backward_input, costs.backward_weight, costs.p2p)
    least = float(pipeline.lower_bound(start.placement, m, *parts, split=start.split))
    assert least * (1 - 1e-9) <= found.bound <= found.makespan * (1 + 1e-9)
    assert found.gap == 0 if found.proven else 0 <= found.gap < 1


def test_a_case_worked_by_hand():
    # two ranks, two micro-batches, one alive at a time: nothing may overlap but the messages' far ends
    start, costs = pipeline.build("1f1b", 2, 1, 2), pipeline.Costs.equal(2)
    tight = improve(start, costs, [1, 1], seconds=5)
    assert tight.proven
    assert tight.makespan == 2 * 6  # F F B+W B+W of each micro-batch in turn
    free = improve(start, costs, [2, 2], seconds=5)
    assert (free.makespan, free.proven, free.gap) == (9.0, True, 0.0)  # 1F1B: (m + p − 1)·3


def test_the_time_limit_gives_a_gap():
    found = improve(pipeline.build("v_half", 4, 2, 5), pipeline.Costs.equal(8, 1.0, 1.4, 0.7), seconds=0.3)
    assert not found.proven
    assert 0 < found.gap < 1
    assert found.bound < found.makespan


def test_what_is_refused():
    costs = pipeline.Costs.equal(8)
    with pytest.raises(InputError, match=f"at most {LARGEST}"):
        improve(pipeline.build("zb_h1", 8, 1, 64), costs)
    with pytest.raises(InputError) as caught:
        improve(pipeline.build("1f1b", 8, 1, 8), costs, [0] * 8, seconds=0)
    assert [problem.key for problem in caught.value.problems] == ["limit", "seconds"]
