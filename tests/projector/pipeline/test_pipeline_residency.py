"""What is alive: published peaks, and a replay by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedules import sizes

from projector import pipeline
from projector.errors import InputError
from projector.pipeline.residency import shortened


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
def test_the_replay_is_a_walk_along_the_orders(case):
    compiled = pipeline.compile(*case)
    schedule = compiled.schedule
    played, place = pipeline.replay(schedule), 0
    for order in schedule.orders:
        alive, pending = [0] * schedule.chunks, [0] * schedule.chunks
        for kind, chunk, _ in order:
            assert played.alive[place].tolist() == alive
            assert played.pending[place].tolist() == pending
            alive[chunk] += {"F": 1, "B": -1, "W": 0}[kind]
            pending[chunk] += {"F": 0, "B": int(schedule.split), "W": -1}[kind]
            place += 1
        assert alive == pending == [0] * schedule.chunks
    assert (pipeline.resident(compiled, 1.0)[np.append(compiled.rank_starts[1:], compiled.size) - 1] == 0).all()


@settings(max_examples=60, deadline=None)
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
    with pytest.raises(InputError, match="delta_forward"):
        pipeline.peak(pipeline.compile("1f1b", 4, 1, 8), np.ones(3))
