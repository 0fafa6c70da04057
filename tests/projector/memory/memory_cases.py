"""Workloads for the memory tests, built by hand so that they depend on no loader."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from projector.frameworks.types import Resolved
from projector.hardware.types import Gpu
from projector.layers.lower import layer
from projector.mechanisms import Execution
from projector.workload.model import MLA, LayerKind, Model, MoE
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
    base = Model(
        name="llama", family="llama", num_layers=layers, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32,
        vocab_size=128256, num_query_groups=8, kv_channels=128,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def deepseek_v3(layers: int = 61, dense: int = 3, mtp: int = 0) -> Model:
    return Model(
        name="deepseek",
        family="deepseek",
        num_layers=layers,
        hidden_size=7168,
        ffn_hidden_size=18432,
        num_attention_heads=128,
        vocab_size=129280,
        num_query_groups=128,
        kv_channels=128,
        mla=MLA(kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128, q_lora_rank=1536),
        moe=MoE(
            num_experts=256,
            moe_router_topk=8,
            moe_ffn_hidden_size=2048,
            moe_layer_freq=(0,) * dense + (1,) * (layers - dense),
            moe_shared_expert_intermediate_size=2048,
        ),
        mtp_num_layers=mtp,
    )


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
    return Resolved(workload=workload, execution=Execution.of(**execution).run_by(how))


def tensors(case: Resolved, kind: LayerKind) -> dict[str, float]:
    """Bytes saved by a layer, by storage."""
    return {each.tensor: each.bytes for each in layer(kind, case).saves if each.since == "forward"}


def from_row(row: Mapping[str, Any]) -> Resolved:
    """A SimuMax B200 row: Megatron-LM @23e00ed0963c, Transformer Engine 2.11, everything stated in its fields."""
    arch = row["arch"]
    layers, dense = arch["layers"], arch.get("dense_layers", 0)
    moe = "experts" in arch
    model = Model(
        name=row["model"],
        family="test",
        num_layers=layers,
        hidden_size=arch["hidden"],
        ffn_hidden_size=arch["ffn"],
        num_attention_heads=arch["heads"],
        # NullTokenizer adds one end-of-document token before the vocabulary is padded
        # (Megatron-LM training/tokenizer/tokenizer.py)
        vocab_size=arch["vocab"] + 1,
        num_query_groups=arch["kv_heads"],
        kv_channels=arch.get("head_dim") or arch["hidden"] // arch["heads"],
        mla=MLA(
            kv_lora_rank=arch["kv_lora_rank"],
            qk_head_dim=arch["qk_head_dim"],
            qk_pos_emb_head_dim=arch["qk_rope_head_dim"],
            v_head_dim=arch["v_head_dim"],
            q_lora_rank=arch["q_lora_rank"],
        )
        if arch["attention"] == "mla"
        else None,
        moe=MoE(
            num_experts=arch["experts"],
            moe_router_topk=arch["topk"],
            moe_ffn_hidden_size=arch["moe_ffn"],
            moe_layer_freq=(0,) * dense + (1,) * (layers - dense),
            moe_shared_expert_intermediate_size=arch["shared_expert_ffn"],
        )
        if moe
        else None,
    )
    how = recipe(
        micro_batch_size=row["micro_batch_size"], global_batch_size=row["global_batch_size"],
        seq_length=row["seq_length"], tp=row["tp"], pp=row["pp"], cp=row["cp"], ep=row["ep"] or 1, etp=row["etp"] or 1,
        moe_expert_capacity_factor=float(row["other"]["moe_capacity_factor"]) if moe else None,
        moe_pad_expert_input_to_capacity=moe,
    )  # fmt: skip
    return resolved(model, how, row["gpus"])
