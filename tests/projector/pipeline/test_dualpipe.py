"""DualPipe and DualPipeV: two directions over the same ranks, whole backwards beside forwards, and the README's table."""

from __future__ import annotations

import numpy as np
import pytest

from projector import pipeline
from projector.errors import InputError
from projector.pipeline.compiler import compile_schedule
from projector.pipeline.types import Action, Schedule

ROUNDS = (2, 3, 4)  # micro-batches a stage: the published orders take 2·PP and more


def line(
    name: str, stages: int, microbatches: int, seconds: tuple[float, float, float], paired: bool
) -> pipeline.Timeline:
    """The times of a schedule on as many stages, whatever its ranks; DualPipeV has half the ranks and micro-batches."""
    vpp = pipeline.generator(name).chunks or 1
    compiled = pipeline.compile(name, stages // vpp, vpp, microbatches // vpp, paired=paired)
    return pipeline.evaluate(compiled, *(np.full(stages, part) for part in seconds))


def waits(made: pipeline.Timeline) -> float:
    return float((made.rank_span - made.rank_busy).max())


@pytest.mark.parametrize("stages", [2, 4, 8, 16])
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("seconds", [(1, 1, 1), (2, 2, 1), (3, 3, 2)])
def test_the_published_bubble(stages, rounds, seconds):
    """(PP/2 − 1)(F&B + B − 3W), B the whole backward (deepseek-ai/DualPipe README); F&B = F + B."""
    forward, inputs, weight = seconds
    whole = inputs + weight
    expected = (stages / 2 - 1) * (forward + whole + whole - 3 * weight)
    for name in ("dualpipe", "dualpipe_v"):
        assert waits(line(name, stages, rounds * stages, seconds, True)) == pytest.approx(expected)


@pytest.mark.parametrize("seconds", [(1, 1.5, 0.5), (2, 3, 1), (1, 1.25, 0.75)])
def test_longer_input_gradients_wait_no_longer_than_published(seconds):
    forward, inputs, weight = seconds
    for stages in (4, 8, 16):
        most = (stages / 2 - 1) * (forward + 2 * (inputs + weight) - 3 * weight)
        made = [waits(line(name, stages, 2 * stages, seconds, True)) for name in ("dualpipe", "dualpipe_v")]
        assert made[0] == pytest.approx(made[1])
        assert most - 4 * (inputs - forward) <= made[0] <= most


def test_what_a_pair_hides_is_saved_for_every_micro_batch():
    stages, m, hidden = 8, 64, 0.25
    compiled = pipeline.compile("dualpipe", stages, 1, m, paired=True)
    ones = np.ones(stages)
    plain = pipeline.evaluate(compiled, ones, ones, ones, hidden=(0 * ones, 0 * ones))
    made = pipeline.evaluate(compiled, ones, ones, ones, hidden=(hidden * ones, hidden * ones))
    pairs = np.bincount(compiled.rank[compiled.pairs[0]], minlength=stages)
    assert made.rank_busy == pytest.approx(plain.rank_busy - 2 * hidden * pairs)
    assert (pairs >= 2 * (m // 2 - stages)).all()  # all but warm-up and flush


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
def test_activations_and_parameters_of_the_table(pp):
    schedule = pipeline.build("dualpipe", pp, 1, 4 * pp)
    assert (schedule.chunks, schedule.copies, schedule.each) == (2, 2, 2 * pp)
    assert pipeline.peak(compile_schedule(schedule), 1.0).max() == pp + 1
    for rank, own in enumerate(schedule.placement):
        assert own == (rank, pp - 1 - rank)


def test_both_directions_are_mirror_images():
    made = line("dualpipe", 8, 32, (1.0, 1.5, 0.75), True)
    assert made.rank_busy == pytest.approx(made.rank_busy[::-1])
    assert made.rank_end == pytest.approx(made.rank_end[::-1])


def test_sizes_it_refuses():
    with pytest.raises(InputError) as caught:
        pipeline.compile("dualpipe", 5, 2, 7)
    assert {p.key: p.expected for p in caught.value.problems} == {
        "vpp": "1 for dualpipe", "pp": "a multiple of 2 for dualpipe", "microbatches": "a multiple of 2 for dualpipe"
    }  # fmt: skip


def test_the_gradient_of_a_whole_backward_leaves_at_its_end():
    F, B, W = (Action(kind, 0, 0) for kind in "FBW")
    orders = ((F, B, W),) * 2
    placement = ((0,), (1,))
    ones = np.ones(2)
    apart, whole = (
        pipeline.evaluate(compile_schedule(Schedule("x", 2, 1, 1, True, orders, placement, joined)), ones, ones, ones)
        for joined in (None, ((0, 3), (0, 3)))
    )
    assert (float(apart.makespan), float(whole.makespan)) == (5.0, 6.0)
