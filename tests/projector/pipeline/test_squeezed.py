"""V-Half and V-Min: the two ends of their repeated blocks are drawn together, without more memory than the block has."""

from __future__ import annotations

import numpy as np
import pytest

from projector import pipeline
from projector.pipeline.compiler import compile_schedule
from projector.pipeline.evaluator import evaluate
from projector.pipeline.schedules import squeezed
from projector.pipeline.schedules.steady import steady
from projector.pipeline.types import Action, actions


def span(name: str, pp: int, microbatches: int, forward: float, backward: float, weight: float) -> float:
    """Seconds of the rank that works longest, from its first forward on: what the published code prints."""
    compiled = compile_schedule(pipeline.build(name, pp, 2, microbatches))
    costs = [np.full(2 * pp, seconds) for seconds in (forward, backward, weight)]
    end = evaluate(compiled, *costs).end
    begin = end - np.asarray([forward, backward, weight])[compiled.kind]
    return max(end[compiled.rank == rank].max() - begin[compiled.rank == rank].min() for rank in range(pp))


@pytest.mark.parametrize(
    ("pp", "microbatches", "half", "least"),
    # sail-sg/zero-bubble-pipeline-parallelism@3a91d0c8 zbv_greedy.py, run with F = B = W = 5 and free messages
    [(4, 8, 265, 295), (4, 12, 385, 415), (8, 16, 565, 615), (8, 32, 1045, 1095), (3, 9, 295, 295), (5, 10, 355, 375)],
)
def test_the_published_spans(pp: int, microbatches: int, half: float, least: float) -> None:
    assert span("v_half", pp, microbatches, 5, 5, 5) == half
    assert span("v_min", pp, microbatches, 5, 5, 5) == least


@pytest.mark.parametrize("name", ["v_half", "v_min"])
@pytest.mark.parametrize("pp", [2, 3, 4, 6, 8, 11])
def test_more_micro_batches_hold_no_more_alive(name: str, pp: int) -> None:
    """The block's own residency is the limit: what holds for two rounds of it holds for ten."""
    peaks = []
    for microbatches in (6 * pp, 10 * pp):
        compiled = compile_schedule(pipeline.build(name, pp, 2, microbatches))
        peaks.append(int(pipeline.peak(compiled, 1.0).max()))
    assert peaks[0] == peaks[1]
    one_f_one_b = 2 * pp  # chunks of half a rank's layers that its first rank holds
    assert peaks[0] <= one_f_one_b * (2 / 3 if name == "v_half" else 1 / 2) + 3


@pytest.mark.parametrize("name", ["v_half", "v_min"])
def test_each_further_micro_batch_costs_its_work(name: str) -> None:
    spans = [span(name, 8, m, 3, 5, 4) for m in (24, 25, 26, 30)]
    assert np.diff(spans[:3]) == pytest.approx(2 * (3 + 5 + 4), rel=0.35)
    assert spans == sorted(spans)


@pytest.mark.parametrize("name", ["v_half", "v_min"])
@pytest.mark.parametrize("pp", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16])
def test_the_steady_state_repeated_is_the_whole_generation(name: str, pp: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = (2 * pp + 3, 2 * pp + 4, 3 * pp + 5, 5 * pp + 3)
    repeated = [pipeline.build(name, pp, 2, m).orders for m in counts]
    monkeypatch.setattr(squeezed, "steady", lambda in_full, microbatches, enough: tuple(in_full(microbatches)))
    assert repeated == [pipeline.build(name, pp, 2, m).orders for m in counts]


def test_an_order_that_never_repeats_is_generated_in_full() -> None:
    asked = []

    def odd(count: int) -> list[tuple[Action, ...]]:
        asked.append(count)
        forward = actions("F", 0, count)
        return [(*forward, *reversed(forward))]

    assert steady(odd, 9, 4) == tuple(odd(9))
    assert asked == [4, 9, 9]
