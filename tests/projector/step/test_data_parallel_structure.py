"""Which groups exchange gradients and weights, how often, and which level of the network a message crosses."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.collectives.placement import groups, hop
from projector.frameworks import resolve
from projector.frameworks.types import Resolved
from projector.hardware import catalogue, host_link
from projector.hardware.types import Cluster, Fabric, GroupShape
from projector.layers import lower
from projector.layers.step import optimizer
from projector.operators.types import Collective, Stream
from projector.operators.weights import WeightSet
from projector.projection import Projection, project
from tests.workloads import sharded as workload
from tests.workloads import weights

H100 = catalogue.default_cluster("h100_sxm")
GB200 = catalogue.default_cluster("gb200")


PART = weights(10**9, 4 * 10**8)


def resolved(**recipe: object) -> Resolved:
    return resolve(workload("qwen3_30b_a3b", ep=8, **recipe), "nvidia", "hopper")  # type: ignore[arg-type]


def made(cluster: Cluster = H100, **recipe: object) -> Projection:
    return project(workload(**recipe), cluster)  # type: ignore[arg-type]


def by_name(ops: tuple[Collective, ...]) -> dict[str, tuple[str, str, float]]:
    return {op.name: (op.kind, op.group, op.bytes) for op in ops}


def copies(case: Resolved) -> tuple[int, int]:
    return case.execution.data_parallel.copies(case.workload)


def shards(case: Resolved) -> tuple[int, int]:
    return case.execution.data_parallel.shards(case.workload)


def reduction(case: Resolved, part: WeightSet) -> tuple[Collective, ...]:
    return case.execution.data_parallel.reduction(case.workload, part)


def gather(case: Resolved, part: WeightSet) -> tuple[Collective, ...]:
    return case.execution.data_parallel.gather(case.workload, part)


def test_the_distributed_optimizer_scatters_over_all_ranks() -> None:
    case = resolved()
    assert copies(case) == (1, 1)
    assert shards(case) == (64, 8)
    assert by_name(reduction(case, PART)) == {
        "grad_reduce_scatter": ("reduce_scatter", "dp", 4e9),
        "grad_expert_reduce_scatter": ("reduce_scatter", "edp", 1.6e9),
    }
    assert by_name(gather(case, PART)) == {
        "param_all_gather": ("all_gather", "dp", 2e9),
        "param_expert_all_gather": ("all_gather", "edp", 8e8),
    }


def test_instances_scatter_inside_and_add_up_between() -> None:
    """NVIDIA/Megatron-LM: reduce-scatter over dp/I ranks, all-reduce of that shard over I, all-gather over dp/I."""
    case = resolved(num_distributed_optimizer_instances=4)
    assert shards(case) == (16, 2)
    assert by_name(reduction(case, PART)) == {
        "grad_reduce_scatter": ("reduce_scatter", "dp_shard", 4e9),
        "grad_replicas": ("all_reduce", "dp_replicate", 4e9 / 16),
        "grad_expert_reduce_scatter": ("reduce_scatter", "edp_shard", 1.6e9),
        "grad_expert_replicas": ("all_reduce", "edp_replicate", 1.6e9 / 2),
    }
    assert {op.group for op in gather(case, PART)} == {"dp_shard", "edp_shard"}


def test_as_many_instances_as_ranks_only_add_up() -> None:
    case = resolved(data_parallel_sharding="optim_grads_params", data_parallel_shard_size=1)
    assert {op.kind for op in reduction(case, weights(10**9, 0))} == {"all_reduce"}
    assert gather(case, weights(10**9, 0)) == ()


def test_plain_data_parallelism_adds_up_over_all_ranks() -> None:
    case = resolved(data_parallel_sharding="no_shard")
    assert {(op.kind, op.group) for op in reduction(case, PART)} == {("all_reduce", "dp"), ("all_reduce", "edp")}
    assert gather(case, PART) == ()


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([None, 8, 16, 32, 64]))
def test_shards_times_copies_are_all_ranks(instances: int, shard: int | None) -> None:
    case = resolved(num_distributed_optimizer_instances=instances, data_parallel_shard_size=shard)
    dense, expert = copies(case)
    assert shards(case) == (64 // dense, 8 // expert)
    shapes = groups(case.workload.recipe, 64, H100)
    for name, (inner, outer) in {"dp": (64 // dense, dense), "edp": (8 // expert, expert)}.items():
        assert (shapes[f"{name}_shard"].size, shapes[f"{name}_replicate"].size) == (inner, outer)


def test_replicas_on_neighbouring_ranks_leave_shards_apart() -> None:
    case = resolved(data_parallel_shard_size=8).workload.recipe
    together, apart = groups(case, 64, H100), groups(case, 64, H100, shards_apart=True)
    assert together["dp_shard"] == GroupShape(8, 8)
    assert together["dp_replicate"] == GroupShape(8, 1)
    assert apart["dp_shard"] == GroupShape(8, 1)
    assert apart["dp_replicate"] == GroupShape(8, 8)


def test_shards_know_their_pods() -> None:
    pods = replace(
        H100,
        inter=replace(H100.inter, size=16),
        outer=Fabric(name="spine", topology="switch", size=1 << 20, bandwidth=25e9, latency=1e-5),
    )
    shapes = groups(resolved(data_parallel_shard_size=8).workload.recipe, 64, pods)
    assert (shapes["dp_shard"].pods, shapes["dp_replicate"].pods) == (1, 4)
    assert (
        groups(resolved(data_parallel_shard_size=8).workload.recipe, 64, pods, shards_apart=True)["dp_shard"].pods == 4
    )


def test_a_boundary_crosses_what_its_ranks_cross() -> None:
    # 16 ranks, four stages of four: 0|1 in one node, 1|2 across, 2|3 in the other; 3|0 of virtual stages across
    assert [hop(a, b, 4, 8) for a, b in ((0, 1), (1, 2), (2, 3), (3, 0))] == ["pp_node", "pp_pod", "pp_node", "pp_pod"]
    assert hop(0, 1, 8, 8) == "pp_pod"
    assert hop(0, 1, 8, 72) == "pp_node"
    assert [hop(a, a + 1, 8, 8, 16) for a in range(3)] == ["pp_pod", "pp_beyond", "pp_pod"]
    assert hop(0, 1, 3, 4) == "pp_pod"  # one of three pairs crosses, and the stage waits for it


def test_stages_in_one_node_wait_less_for_each_other() -> None:
    inside, across = (made(gpus=gpus, pp=4, global_batch_size=16, seq_length=8192) for gpus in (8, 32))
    two = made(gpus=16, pp=4, global_batch_size=16, seq_length=8192)
    assert inside.timeline.transfer.max() < across.timeline.transfer.max()
    assert sorted(set(two.timeline.transfer.round(9).tolist())) == sorted(
        {0.0, round(float(inside.timeline.transfer.max()), 9), round(float(across.timeline.transfer.max()), 9)}
    )


def test_nodes_of_the_cluster_deduplicate_tokens() -> None:
    """64 expert ranks: eight nodes of H100, one domain of GB200."""
    experts = {"ep": 64, "moe_token_dispatcher_type": "flex", "recompute_granularity": "full", "global_batch_size": 64}
    eight = made(H100, model="deepseek_v3", framework="megatron-lm", **experts)
    one = made(GB200, model="deepseek_v3", framework="megatron-lm", **experts)
    assert (eight.resolved.node_ranks, one.resolved.node_ranks) == (8, 72)
    assert one.breakdown["ep_s"] < 0.5 * eight.breakdown["ep_s"]


@pytest.mark.parametrize(("node", "share"), [(8, 7 / 8), (16, 3 / 4), (32, 1 / 2), (72, 0.0)])
def test_tokens_leave_the_nodes_of_the_run(node: int, share: float) -> None:
    """Of 64 expert ranks those on other nodes: a token with 8 experts in 4 of 8 groups reaches no more than all of them."""
    case = workload("deepseek_v3", ep=64, moe_token_dispatcher_type="flex", recompute_granularity="full")
    base = resolve(case, "nvidia", "hopper")
    kind = next(kind for kind in case.model.layer_kinds if kind.moe)
    block = lower.layer(kind, replace(base, node_ranks=node))
    sent = next(op for op in block.forward if op.name == "moe.dispatch")
    assert isinstance(sent, Collective)
    assert sent.nodes_bytes is not None
    token = 2.0 * case.model.hidden_size * case.recipe.seq_length
    assert sent.nodes_bytes <= token * 64 / node * share + 1.0
    assert (sent.nodes_bytes > 0) == (share > 0)


def optimizer_passes(**recipe: object) -> dict[str, tuple[float, float]]:
    case = resolve(workload(gpus=8, data_parallel_sharding="no_shard", **recipe), "nvidia", "hopper")  # type: ignore[arg-type]
    ops = [op for op in optimizer(case, weights(1, 0)) if isinstance(op, Stream)]
    return {op.name: (op.read, op.write) for op in ops}


def test_a_precision_aware_optimizer_updates_weights_in_place() -> None:
    """What bf16 lacks of an fp32 weight beside the weight itself: 2 + 2 bytes, and no copy afterwards."""
    plain = optimizer_passes()
    assert plain["adam"] == (16.0, 12.0)
    assert plain["copy_to_model"] == (4.0, 2.0)
    narrow = {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
    aware = optimizer_passes(use_precision_aware_optimizer=True, **narrow)
    assert aware["adam"] == (12.0, 8.0)
    assert "copy_to_model" not in aware
    half = optimizer_passes(use_precision_aware_optimizer=True, main_params_dtype="fp16", **narrow)
    assert half["adam"] == (12.0, 8.0)  # the master in fp16 was widened before
    assert half["copy_to_model"] == (2.0, 2.0)


def test_fsdp_under_a_pipeline_gathers_and_reduces_once_a_step() -> None:
    """torch keeps weights between micro-batches unless it is told to give them back after each forward."""
    case = {
        "model": "llama3_70b", "framework": "torchtitan", "pp": 4, "tp": 2, "gpus": 64,
        "data_parallel_sharding": "optim_grads_params", "seq_length": 1024,
    }  # fmt: skip
    kept = made(**case, global_batch_size=128)
    given_back = made(**case, global_batch_size=128, fsdp_reshard_after_forward=True)
    assert kept.breakdown["dp_s"] < 0.5 * given_back.breakdown["dp_s"]
    more = made(**case, global_batch_size=512)
    assert more.breakdown["dp_s"] == pytest.approx(kept.breakdown["dp_s"], rel=0.2)


def test_weights_kept_until_the_backward_are_gathered_once() -> None:
    case = {
        "framework": "torchtitan", "data_parallel_sharding": "optim_grads_params", "seq_length": 512, "gpus": 64,
        "global_batch_size": 64,
    }  # fmt: skip
    usual, kept = made(**case), made(**case, fsdp_reshard_after_forward=False)
    assert kept.breakdown["dp_s"] < usual.breakdown["dp_s"]
    assert kept.breakdown["dp_s"] > 0


def test_sharded_gradients_are_reduced_in_every_microbatch() -> None:
    one, two = (made(data_parallel_sharding=how, global_batch_size=256) for how in ("optim", "optim_grads"))
    assert two.breakdown["dp_s"] > 2 * one.breakdown["dp_s"]
    beside = made(data_parallel_sharding="optim_grads", global_batch_size=256, overlap_grad_reduce=True)
    assert beside.breakdown["dp_s"] < 0.5 * two.breakdown["dp_s"]


def test_host_links_are_faster_with_a_grace_host() -> None:
    v100, a100 = (catalogue.default_cluster(name) for name in ("v100_sxm_16gb", "a100_sxm_80gb"))
    rates = [host_link.bandwidth(cluster) for cluster in (v100, a100, H100, GB200)]
    assert rates == sorted(rates)
    assert len(set(rates)) == 4


def test_more_units_for_the_dispatch_speed_it_up() -> None:
    case = {
        "model": "deepseek_v3", "ep": 8, "gpus": 64, "global_batch_size": 64, "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "deepep", "recompute_granularity": "full",
    }  # fmt: skip
    few, usual = made(**case, moe_deepep_num_sms=4), made(**case)
    assert few.breakdown["ep_s"] > usual.breakdown["ep_s"]
    assert made(**case, moe_deepep_num_sms=20).step_seconds == pytest.approx(usual.step_seconds)
