"""Workloads for the memory tests, every switch that counts stated."""

import dataclasses
from typing import Any

from projector.frameworks.types import Resolved
from projector.hardware.types import Gpu
from projector.layers.lower import layer
from projector.mechanisms import Execution
from projector.workload import zoo
from projector.workload.model import LayerKind, Model
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

GIB = 2.0**30


def gpu(arch: str = "blackwell", usable_gib: float = 178.0) -> Gpu:
    return Gpu(
        name="test", title="a device for tests", vendor="nvidia", arch=arch, compute_units=148, boost_clock_mhz=1965.0,
        peak_clock_mhz=1965.0, peak={"bf16": 2.25e15}, vector_flops=7.5e13, exp_per_clock_per_cu=16.0,
        memory_bytes=180 * GIB, usable_memory_bytes=usable_gib * GIB, memory_bandwidth=8e12, l2_bytes=126e6,
        llc_bytes=0.0, shared_memory_per_cu=228e3, dies=2, tdp_watts=1000.0,
    )  # fmt: skip


def llama(layers: int = 8, **changes: Any) -> Model:
    """A dense model of Llama-3-8B's width."""
    return dataclasses.replace(zoo.load("llama3_8b", num_layers=layers), **changes)


def deepseek_v3(layers: int = 61, dense: int = 3, mtp: int = 0) -> Model:
    """DeepSeek-V3 of so many layers, whose router knows no groups of experts."""
    model = zoo.load("deepseek_v3")
    assert model.moe is not None
    freq = (0,) * dense + (1,) * (layers - dense)
    moe = dataclasses.replace(model.moe, moe_layer_freq=freq, moe_router_num_groups=None, moe_router_group_topk=None)
    return dataclasses.replace(model, num_layers=layers, moe=moe, mtp_num_layers=mtp)


def deepseek_v2(layers: int = 4) -> Model:
    """The same as wide as DeepSeek-V2, its first layer dense."""
    base = deepseek_v3(layers, 1)
    assert base.moe is not None
    experts = dataclasses.replace(
        base.moe, num_experts=160, moe_router_topk=6, moe_ffn_hidden_size=1536, moe_shared_expert_intermediate_size=3072,
    )  # fmt: skip
    return dataclasses.replace(base, hidden_size=5120, ffn_hidden_size=12288, vocab_size=102401, moe=experts)


def recipe(**changes: Any) -> Recipe:
    """What Megatron-LM runs with the distributed optimizer and Transformer Engine's fused loss."""
    base = Recipe(
        micro_batch_size=1, global_batch_size=64, seq_length=4096, sequence_parallel=True, cp_comm_type="a2a",
        data_parallel_sharding="optim", gradient_accumulation_fusion=True, bias_activation_fusion=True,
        cross_entropy_fusion="te", moe_token_dispatcher_type="alltoall", moe_permute_fusion=True,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def resolved(model: Model, how: Recipe, gpus: int, **execution: Any) -> Resolved:
    workload = Workload(model=model, recipe=how, gpus=gpus)
    return Resolved(workload=workload, execution=Execution.of(**execution).configured_by(how))


def changed(case: Resolved, **changes: object) -> Resolved:
    """``case`` with another recipe."""
    how = dataclasses.replace(case.workload.recipe, **changes)
    return dataclasses.replace(case, workload=dataclasses.replace(case.workload, recipe=how))


def tensors(case: Resolved, kind: LayerKind) -> dict[str, float]:
    """Bytes saved by a layer, by storage."""
    return {each.tensor: each.bytes for each in layer(kind, case).saves if each.since == "forward"}
