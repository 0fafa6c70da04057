"""V-1F1B: the orders of the published generator, at two thirds of 1F1B's memory."""

from __future__ import annotations

import numpy as np
import pytest

from projector import pipeline
from projector.pipeline.compiler import compile_schedule


def test_an_order_of_the_published_generator():
    # sail-sg/zero-bubble-pipeline-parallelism@39f2c186 zerobubble/scheduler/v1f1b.py, schedule(4, 8, …): chunk 1 small
    published = (
        "FFFFFfbfbfbfbBFfbBFfbBFfbBfbBBBB",
        "FFFFffbfbFbfBbfFBbfFBbfFBbfBbBBB",
        "FFFfffbFbFBfbBfbFBfbFBfbFBfbBbBB",
        "FfFfFfbBFfbBFfbBFfbBFfbBFfbBbBbB",
    )
    for order, expected in zip(pipeline.build("v_1f1b", 4, 2, 8).orders, published, strict=True):
        assert "".join(action.kind.lower() if action.chunk else action.kind for action in order) == expected


@pytest.mark.parametrize(
    ("pp", "m", "makespan"),
    # the same generator's orders for one second per F, B and W of a chunk, messages for nothing
    [(4, 8, 63), (8, 16, 129), (8, 32, 225), (16, 64, 459), (5, 10, 78), (6, 24, 166)],
)
def test_times_of_the_published_orders(pp, m, makespan):
    ones = np.ones(2 * pp)
    made = pipeline.evaluate(compile_schedule(pipeline.build("v_1f1b", pp, 2, m)), ones, ones, ones)
    assert float(made.makespan) == makespan
    assert makespan < 6 * (m + pp - 1)  # 1F1B


@pytest.mark.parametrize("pp", [2, 3, 4, 5, 8, 12, 16])
def test_two_thirds_of_the_activations(pp):
    compiled = compile_schedule(pipeline.build("v_1f1b", pp, 2, 4 * pp))
    assert pipeline.peak(compiled, 0.5).max() == 2 * pp // 3 + 1  # in micro-batches of a whole rank
