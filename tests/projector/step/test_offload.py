"""What goes to host memory frees device memory and costs time; Muon's products cost time and free a moment."""

from dataclasses import replace
from typing import Any

import pytest

from projector.errors import Unsupported
from projector.hardware import catalogue
from projector.hardware.types import Cluster
from projector.projection import Projection, project
from tests.workloads import workload

H100 = catalogue.default_cluster("h100_sxm")
FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)


def run(
    model: str = "llama3_8b", gpus: int = 8, cluster: Cluster = H100, framework: str = "megatron-lm", **stated: Any
) -> Projection:
    base = {"global_batch_size": 4 * gpus, "data_parallel_sharding": "optim"}
    return project(workload(model, gpus, framework, **base | stated), cluster)


def offloaded(fraction: float, **stated: Any) -> Projection:
    return run(optimizer_cpu_offload=True, optimizer_offload_fraction=fraction, **stated)


def test_nothing_offloaded_is_no_offload() -> None:
    assert offloaded(0.0).step_seconds == run().step_seconds
    assert offloaded(0.0).memory.allocated == run().memory.allocated


def test_more_on_the_host_is_slower_and_frees_more_and_overlapped_copies_are_never_slower() -> None:
    apart, beside = ([offloaded(f, overlap_cpu_optimizer_d2h_h2d=on) for f in FRACTIONS] for on in (False, True))
    for made in (apart, beside):
        steps, memory = [m.step_seconds for m in made], [m.memory.allocated for m in made]
        assert steps == sorted(steps)
        assert steps[-1] > steps[0]
        assert memory == sorted(memory, reverse=True)
        assert memory[0] - memory[-1] > 2**30
    assert all(one.step_seconds <= other.step_seconds for one, other in zip(beside, apart, strict=True))


@pytest.mark.parametrize("what", [{"optimizer_cpu_offload": True}, {"cpu_offloading_num_layers": 31}])
def test_a_faster_link_or_memory_is_never_slower(what: dict[str, Any]) -> None:
    for name in ("host_link", "host_memory"):
        steps = [run(cluster=replace(H100, **{name: rate}), **what).step_seconds for rate in (8e9, 40e9, 200e9, 1e12)]
        assert steps == sorted(steps, reverse=True)
        assert steps[0] > steps[-1]


def test_offloaded_layers_free_more_and_cost_no_less() -> None:
    made = [run(cpu_offloading_num_layers=n) for n in (0, 4, 8, 16, 31)]
    steps, memory = [m.step_seconds for m in made], [m.memory.allocated for m in made]
    assert steps == sorted(steps)
    assert memory == sorted(memory, reverse=True)


def test_modules_on_the_host_free_their_inputs() -> None:
    less = run(offload_modules=("core_attn",))
    both = run(offload_modules=("core_attn", "attn_proj"))
    assert both.memory.allocated < less.memory.allocated < run().memory.allocated
    slow = replace(H100, host_link=2e9)
    assert run(cluster=slow, offload_modules=("core_attn",)).step_seconds > run(cluster=slow).step_seconds


def test_fused_experts_offload_what_lies_between_their_linears() -> None:
    """The context of NVIDIA/Megatron-LM core/pipeline_parallel/fine_grained_activation_offload.py catches every tensor
    that is saved inside: inputs of both linears and of the activation. What recompute drops cannot go to the host too."""
    saved = {}
    for recomputed in (None, ("moe_act",)):
        stated = {"recompute_granularity": "selective", "recompute_modules": recomputed} if recomputed else {}
        made = [
            run("qwen3_30b_a3b", ep=8, framework="megatron-lm", **stated, **more).memory.allocated
            for more in ({}, *({"offload_modules": (name,)} for name in ("expert_fc1", "moe_act", "fused_group_mlp")))
        ]
        saved[recomputed] = [made[0] - each for each in made[1:]]
        first, activation, fused = saved[recomputed]
        assert fused >= first + activation * 0.99 > first > 0
    without, with_moe_act = saved[None][2], saved[("moe_act",)][2]
    assert with_moe_act < without


def test_states_alone_cost_only_their_way() -> None:
    whole, states = offloaded(1.0), run(offload_optimizer_states=True)
    assert run().step_seconds < states.step_seconds < whole.step_seconds
    assert states.memory.allocated == pytest.approx(whole.memory.allocated)


def test_published_fractions_of_a_mixture_of_experts() -> None:
    """Qwen3-30B-A3B, TP2 PP2 EP4 on 16 H100: 0.996 s without, 1.871, 2.484, 3.187 and 4.189 s with a quarter each, 3.877 s
    overlapped (NVIDIA-NeMo/Megatron-Bridge pull request 3062). What is compared is the added time."""
    job = {"tp": 2, "pp": 2, "ep": 4, "sequence_parallel": True, "moe_token_dispatcher_type": "alltoall"}
    job |= {"global_batch_size": 32, "use_precision_aware_optimizer": True}

    def added(fraction: float, **more: Any) -> float:
        plain = run("qwen3_30b_a3b", 16, **job).step_seconds
        return offloaded(fraction, model="qwen3_30b_a3b", gpus=16, **job, **more).step_seconds - plain

    for fraction, measured in ((0.25, 0.875), (0.5, 1.488), (0.75, 2.191), (1.0, 3.193)):
        assert added(fraction) == pytest.approx(measured, rel=0.12)
    assert added(1.0, overlap_cpu_optimizer_d2h_h2d=True) == pytest.approx(2.881, rel=0.12)


def test_published_fractions_of_one_small_model() -> None:
    """Qwen3-0.6B on one H100: 0.752 s, half 1.187 s, all and overlapped 1.678 s (NVIDIA-NeMo/RL pull request 3628)."""
    plain = run("qwen3_0.6b", 1).step_seconds
    half = offloaded(0.5, model="qwen3_0.6b", gpus=1).step_seconds - plain
    whole = offloaded(1.0, model="qwen3_0.6b", gpus=1, overlap_cpu_optimizer_d2h_h2d=True).step_seconds - plain
    assert half == pytest.approx(0.435, rel=0.15)
    assert whole == pytest.approx(0.926, rel=0.15)


def test_a_unified_memory_has_no_host_to_go_to() -> None:
    with pytest.raises(Unsupported, match="share one memory"):
        run(cluster=catalogue.default_cluster("mi300a"), gpus=4, optimizer_cpu_offload=True)


def test_muon_trades_a_moment_for_products() -> None:
    adam, muon = run(), run(optimizer="muon")
    assert muon.breakdown["optimizer_s"] > adam.breakdown["optimizer_s"]
    assert muon.memory.components["moments"] < adam.memory.components["moments"]
    assert muon.memory.components["moments"] > 0.5 * adam.memory.components["moments"]  # embeddings stay with Adam


def test_muon_shares_its_matrices_where_states_are_shared() -> None:
    alone = run(optimizer="muon", data_parallel_sharding="no_shard").breakdown["optimizer_s"]
    shared = run(optimizer="muon").breakdown["optimizer_s"]
    assert shared < 0.3 * alone


def test_a_split_matrix_is_no_dearer_than_a_repeated_one() -> None:
    made = {mode: run(tp=4, optimizer="muon", muon_tp_mode=mode) for mode in ("blockwise", "distributed", "duplicated")}
    seconds = {mode: p.breakdown["optimizer_s"] for mode, p in made.items()}
    assert seconds["blockwise"] <= seconds["duplicated"]
    assert seconds["distributed"] <= seconds["duplicated"]


def test_flop_of_an_iteration_are_those_of_the_paper() -> None:
    from projector.step.muon import _iteration

    m, n = 1024, 4096
    assert sum(op.flops for op in _iteration(m, n)) == 4 * m * m * n + 2 * m**3
