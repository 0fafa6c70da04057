"""Axes of a mesh, switches of other trainers and what a peak counts, in records of results tables."""

from __future__ import annotations

import pytest
from loose_cases import SIMUMAX, one, record


def test_gcd_units_and_hsdp() -> None:
    run, _ = one(
        **record(
            gpu="MI250X GCD",
            gpus=2048,
            nodes=256,
            framework="TorchTitan (fork)",
            dp=2048,
            micro_batch_size=4,
            global_batch_size=8192,
            fsdp=256,
            other={"gpu_unit": "GCD", "dp_shard": 256, "dp_replicate": 8},
        )
    )
    assert run.gpu == "mi250x"
    assert run.gpus_per_node is None
    assert run.recipe is not None
    assert run.recipe.data_parallel_shard_size == 256


MESH = SIMUMAX | {
    "framework": "MaxText (JAX)",
    "gpus": 64,
    "nodes": 8,
    "global_batch_size": 64,
    "zero": None,
    "other": {},
}


@pytest.mark.parametrize(
    ("axes", "dp", "shard"),
    [
        ({"dp": 2, "fsdp": 4, "ep": 8}, 64, 32),
        ({"dp": 1, "fsdp": 8, "ep": 8}, 64, None),
        ({"dp": None, "fsdp": 8, "ep": 8}, 64, None),
        ({"dp": 64, "fsdp": 2, "ep": 8}, 64, 16),
    ],
)
def test_axes_of_a_mesh_multiply(axes: dict[str, int | None], dp: int, shard: int | None) -> None:
    run = one(**(MESH | axes | {"metrics": {"iteration_ms": 366.6}}))[0]
    assert run.problem == ""
    assert run.workload.dp == dp
    assert run.recipe.data_parallel_shard_size == shard


def test_axes_that_make_up_other_gpus_are_refused() -> None:
    run = one(**(MESH | {"dp": 3, "fsdp": 4, "ep": 8, "metrics": {"iteration_ms": 366.6}}))[0]
    assert "is not 64 GPUs" in run.problem


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (
            {"liger_kernel": True},
            {"cross_entropy_fusion": "liger", "apply_rope_fusion": True, "bias_activation_fusion": True},
        ),
        ({"liger": "rope, rms_norm"}, {"apply_rope_fusion": True, "cross_entropy_fusion": None}),
        ({"liger_kernel": False}, {"apply_rope_fusion": None}),
        ({"fused": "fused MLP, fused cross entropy"}, {"cross_entropy_fusion": "te", "bias_activation_fusion": True}),
        ({"fused": "fused dropout-add-LN"}, {"cross_entropy_fusion": None, "bias_activation_fusion": None}),
        (
            {"optimizer": "AdamW, bf16 states"},
            {"optimizer": "adam", "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"},
        ),
        ({"optimizer_states": "bfloat16"}, {"exp_avg_dtype": "bf16"}),
        ({"optimizer": "adamw_torch_8bit"}, {"optimizer": "adam_8bit"}),
        ({"activation_checkpointing": True}, {"recompute_granularity": "full"}),
        ({"gradient_checkpointing": False}, {"recompute_granularity": "none"}),
        ({"torch_compile": "model and loss"}, {"torch_compile": True}),
        (
            {"moe_dispatcher": "hybridep"},
            {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"},
        ),
        ({"mega_moe": True}, {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "mega_moe"}),
        ({"moe": "MegaMoE fused"}, {"moe_flex_dispatcher_backend": "mega_moe", "moe_grouped_gemm": "fused"}),
        ({"ep_backend": "standard (all-to-all)"}, {"moe_token_dispatcher_type": "alltoall"}),
        ({"cuda_graphs": True}, {"cuda_graph_scope": ("full",)}),
    ],
)
def test_switches_of_other_trainers(other: dict[str, object], expected: dict[str, object]) -> None:
    run = one(**(SIMUMAX | {"recompute": None, "other": other}))[0]
    assert {name: getattr(run.recipe, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("note", "kind"),
    [
        ("memory = max_memory_allocated in MB / 1024", "allocated"),
        ("Memory is GiB of 80.", "device"),
        ("GiB of memory per GPU", None),
    ],
)
def test_what_a_peak_counts_is_read_from_its_words(note: str, kind: str | None) -> None:
    run = one(**(SIMUMAX | {"framework": "PaddleNLP", "ep": 8, "note": note}))[0]
    assert run.measured.memory_kind == kind
