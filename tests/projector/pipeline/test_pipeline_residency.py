"""What is alive: published peaks, and a replay by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedules import sizes

from projector import pipeline
from projector.errors import InputError
from projector.pipeline import KINDS


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


@pytest.mark.parametrize("pp", [4, 6, 8, 12, 16])
def test_v_schedules_save_memory(pp):
    full = 2 * pp
    assert max(chunks("v_half", pp, 2, 4 * pp)) <= full / 2 + 3
    assert max(chunks("v_min", pp, 2, 4 * pp)) <= full / 3 + 4


@pytest.mark.parametrize("m", [1, 2, 3, 4, 8, 32])
def test_1f1b_holds_the_smaller_of_m_and_the_stages_below(m):
    assert chunks("1f1b", 4, 1, m) == [min(m, 4 - rank) for rank in range(4)]


@settings(max_examples=80, deadline=None)
@given(sizes(), st.integers(0, 2**31))
def test_peak_is_a_replay(case, seed):
    compiled = pipeline.compile(*case)
    random = np.random.default_rng(seed)
    kept, fwd, bwd, wgt = random.integers(0, 100, (4, compiled.stages)).astype(float)
    early = random.integers(-20, 20, compiled.stages).astype(float)
    schedule = compiled.schedule
    expected = []
    for rank, order in enumerate(schedule.orders):
        now = top = 0.0
        for kind, chunk, _ in order:
            v = schedule.placement[rank][chunk]
            if schedule.split:
                change = {"F": kept[v], "B": -early[v], "W": early[v] - kept[v]}[kind]
            else:
                change = {"F": kept[v], "B": -kept[v]}[kind]
            top = max(top, max(now, now + change) + {"F": fwd, "B": bwd, "W": wgt}[kind][v])
            now += change
        assert now == 0
        expected.append(top)
    assert pipeline.peak(compiled, kept, fwd, bwd, early, wgt).tolist() == expected
    many = pipeline.peak(compiled, np.stack([kept, 2 * kept]), fwd, bwd, early, wgt)
    assert many[0].tolist() == expected
    assert (many[1] >= many[0]).all()


@settings(max_examples=60, deadline=None)
@given(sizes())
def test_in_flight_ends_empty_and_peaks_alike(case):
    compiled = pipeline.compile(*case)
    top = pipeline.peak(compiled, np.ones(compiled.stages))
    for rank, flight in enumerate(pipeline.in_flight(compiled)):
        assert flight.sign.sum() == 0
        assert flight.alive.max() == top[rank]
        assert [KINDS[k] for k in flight.kind] == [action.kind for action in compiled.schedule.orders[rank]]
    assert (pipeline.resident(compiled, 1.0)[np.append(compiled.rank_starts[1:], compiled.size) - 1] == 0).all()


def test_wrong_shape():
    with pytest.raises(InputError, match="delta_forward"):
        pipeline.peak(pipeline.compile("1f1b", 4, 1, 8), np.ones(3))
