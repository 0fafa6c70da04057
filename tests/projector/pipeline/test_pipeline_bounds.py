"""The bound that prunes a search is never above what a schedule takes, and is met where schedules are optimal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from test_pipeline_times import cases

from projector import pipeline
from projector.pipeline.bounds import lower_bound
from projector.pipeline.types import loop_placement, snake_placement


@settings(max_examples=120, deadline=None)
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
