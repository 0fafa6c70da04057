"""Schedules inside a projection: what surrounds them, what they refuse, and traffic beside neighbouring micro-batches."""

import pytest
from asked import refusal

from projector.errors import Unsupported
from projector.hardware import catalogue
from projector.memory.timeline import memory_timeline
from projector.projection import Projection, project
from tests.workloads import sharded

H100 = catalogue.default_cluster("h100_sxm")


def made(model: str = "llama3_8b", gpus: int = 32, **recipe: object) -> Projection:
    return project(sharded(model, gpus, **{"pp": 4} | recipe), H100)


def experts(**recipe: object) -> Projection:
    return made("qwen3_30b_a3b", 64, ep=16, vpp=3, global_batch_size=512, **recipe)


def sums(projection: Projection) -> None:
    assert sum(projection.breakdown.values()) == pytest.approx(projection.step_seconds)
    assert min(projection.breakdown.values()) >= 0


def test_traffic_beside_neighbours_is_exposed_in_warmup_and_flush() -> None:
    alone, beside = experts(), experts(overlap_moe_expert_parallel_comm=True)
    sums(alone)
    sums(beside)
    assert beside.step_seconds < alone.step_seconds
    assert 0 < beside.breakdown["ep_s"] < alone.breakdown["ep_s"]
    forward, backward = beside.timeline.compiled.pairs
    assert len(forward) == len(backward) > 0
    assert len(alone.timeline.compiled.pairs[0]) == 0


def test_more_microbatches_expose_a_smaller_share() -> None:
    def share(batch: int) -> float:
        projection = made(
            "qwen3_30b_a3b", 64, ep=16, vpp=3, global_batch_size=batch, overlap_moe_expert_parallel_comm=True
        )
        return projection.breakdown["ep_s"] / projection.step_seconds

    assert share(2048) < share(512) < share(256)


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "zb-1p", "zb-2p", "gpipe"])
def test_every_schedule_adds_up(name: str) -> None:
    for overlap in (False, True):
        projection = made(pipeline_schedule=name, overlap_grad_reduce=overlap, overlap_param_gather=overlap)
        sums(projection)
        assert projection.step_seconds > float(projection.timeline.makespan)
        assert {span.track for span in projection.spans} == {"optimizer", "data-parallel"}
        assert {span.rank for span in projection.spans} == set(range(4))


def test_weight_gradients_that_are_computed_apart_bring_their_own_host_time() -> None:
    """A host-bound stage: W waits for its own launches, and a longer sequence does not move time from B to W."""
    shape: dict[str, object] = {"tp": 8, "sequence_parallel": True}
    short = made(pipeline_schedule="zb_h1", seq_length=256, **shape)
    stages = short.timeline.compiled.stages
    inputs, weight = (short.timeline.durations[kind * stages : (kind + 1) * stages] for kind in (1, 2))
    assert (0.05 * inputs < weight).all()
    longer = [made(pipeline_schedule="v-min", vpp=2, seq_length=length, **shape).step_seconds for length in (256, 512)]
    assert longer == sorted(longer)


def test_orders_made_for_the_stages_are_no_slower() -> None:
    by_hand, listed = (made(pipeline_schedule=name) for name in ("zb_h1", "zb-1p"))
    assert listed.timeline.compiled.schedule.name == "zb_1p"
    # the order is made for messages beside compute; these block, so allow for what that costs
    assert listed.step_seconds <= by_hand.step_seconds * 1.02


def test_reductions_beside_compute_end_earlier_with_more_chunks() -> None:
    def reduction(vpp: int) -> float:
        return made(vpp=vpp, overlap_grad_reduce=True, overlap_p2p_comm=False).breakdown["dp_s"]

    assert reduction(4) <= reduction(1)


def test_split_backwards_refuse_recompute_of_whole_layers() -> None:
    full = {"recompute_granularity": "full", "recompute_method": "block"}
    with pytest.raises(Unsupported, match="puts weight gradients off"):
        made(pipeline_schedule="zb_h1", recompute_num_layers=2, **full)
    with pytest.raises(Unsupported, match="puts weight gradients off"):
        made(pipeline_schedule="zb_h1", recompute_layer_ids=(3,))
    assert made(pipeline_schedule="zb_h1", recompute_num_layers=0, **full).step_seconds > 0
    assert made(pipeline_schedule="zb_h1", recompute_granularity="selective").step_seconds > 0
    assert made(pipeline_schedule="1f1b", recompute_num_layers=2, **full).step_seconds > 0


def test_schedule_and_sizes_are_wrong_together() -> None:
    caught = refusal(made, pipeline_schedule="zbv", vpp=1, tp=3, global_batch_size=130)
    keys = {problem.key for problem in caught.problems}
    assert {"recipe.tp", "recipe.vpp"} <= keys


def test_a_last_group_that_does_not_fill_the_pipeline() -> None:
    refusal(made, vpp=2, global_batch_size=17 * 8, match="not 1 \\(17 in groups of 4\\)")
    assert made(vpp=1, global_batch_size=17 * 8).step_seconds > 0


@pytest.mark.parametrize("name", ["zb-1p", "zb-2p"])
def test_memory_is_that_of_the_order_made_for_the_times_at_hand(name: str) -> None:
    found = made(pipeline_schedule=name)
    lines = memory_timeline(found.resolved, H100.gpu, found.timeline)
    for line, rank in zip(lines, found.memory.ranks, strict=True):
        if rank.event not in ("optimizer_step", "construction"):
            assert line.peak == pytest.approx(rank.allocated)
