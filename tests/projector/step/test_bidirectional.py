"""A step whose micro-batches enter at both ends: two copies of every stage, and what that costs and hides."""

from __future__ import annotations

import pytest

from projector import project
from projector.errors import InputError
from projector.hardware import catalogue
from projector.projection import Projection
from tests.workloads import workload

CLUSTER = catalogue.cluster("h100_sxm")
MOE = {"global_batch_size": 256, "ep": 8, "moe_token_dispatcher_type": "alltoall", "recompute_granularity": "none"}


def made(model: str = "llama3_8b", gpus: int = 16, **changes: object) -> Projection:
    return project(workload(model, gpus, **{"pp": 4} | changes), CLUSTER)


def test_two_copies_of_the_parameters() -> None:
    one, two = made(pipeline_schedule="1f1b"), made(pipeline_schedule="dualpipe")
    for pair in zip(two.memory.ranks, reversed(two.memory.ranks), strict=True):
        assert pair[0].parameters == pair[1].parameters
    held, alone = (sum(rank.parameters for rank in each.memory.ranks) for each in (two, one))
    assert held == pytest.approx(2 * alone)
    for name in ("weights", "gradients"):
        both = [sum(rank.components[name] for rank in each.memory.ranks) for each in (two, one)]
        assert both[0] == pytest.approx(2 * both[1])


def test_less_bubble_and_more_around_the_pipeline() -> None:
    one, two = made(pipeline_schedule="zb-h1"), made(pipeline_schedule="dualpipe")
    assert two.breakdown["bubble_s"] < one.breakdown["bubble_s"]
    assert two.breakdown["optimizer_s"] > one.breakdown["optimizer_s"]
    assert sum(two.breakdown.values()) == pytest.approx(two.step_seconds)
    work = [sum(each.breakdown[key] for key in ("compute_s", "host_s", "tp_s")) for each in (one, two)]
    assert work[1] == pytest.approx(work[0], rel=0.25)  # stages at the ends are longer: here they share a rank


def test_copies_exchange_their_gradients_even_without_data_parallelism() -> None:
    alone, two = (made(gpus=8, tp=2, pipeline_schedule=name) for name in ("zb-h1", "dualpipe"))
    assert two.resolved.workload.dp == 1
    assert two.breakdown["dp_s"] > alone.breakdown["dp_s"]


def test_an_exchange_of_tokens_hides_beside_the_other_direction() -> None:
    shown, hidden = (
        made("mixtral_8x7b", 32, pipeline_schedule="dualpipe", overlap_moe_expert_parallel_comm=flag, **MOE)
        for flag in (False, True)
    )
    assert hidden.breakdown["ep_s"] < 0.5 * shown.breakdown["ep_s"]
    assert hidden.step_seconds < shown.step_seconds


def test_it_takes_an_even_number_of_micro_batches() -> None:
    with pytest.raises(InputError) as caught:
        made(pipeline_schedule="dualpipe", global_batch_size=60)
    (problem,) = caught.value.problems
    assert problem.key == "recipe.global_batch_size"
    assert "a multiple of 2 for dualpipe, not 15 micro-batches" in problem.expected


@pytest.mark.parametrize(("name", "vpp"), [("hanayo", 2), ("hanayo", 4), ("v-1f1b", 2), ("dualpipe-v", 2)])
def test_the_other_new_orders_make_a_step(name: str, vpp: int) -> None:
    found = made(pipeline_schedule=name, vpp=vpp)
    assert sum(found.breakdown.values()) == pytest.approx(found.step_seconds)
    assert found.memory.allocated > 0
