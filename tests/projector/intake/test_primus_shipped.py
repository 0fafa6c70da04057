"""Every experiment that Primus ships, where its checkout is at hand: loaded or refused by name; a dozen read by hand."""

import os
from pathlib import Path
from typing import Any

import pytest
from asked import refusal

from projector.errors import Unsupported
from projector.hardware import catalogue
from projector.intake import primus
from projector.intake.loaded import Loaded
from projector.projection import project
from projector.workload.layout import chunks, virtual_stages

ROOT = Path(os.environ.get("PRIMUS_EXAMPLES", Path(__file__).parents[4] / "shared/inputs/primus"))
FILES = sorted(ROOT.glob("examples/*/configs/**/*.yaml"))
#: Files beside the experiments that are none: module names to quantise, a form with blanks to fill in.
NO_EXPERIMENTS = ("lfm2_8B_A1B-FP8-te-precision.yaml", "native_hf_to_megatron_sft.template.yaml")
REASONS = ("not a language model",)
pytestmark = pytest.mark.skipif(not FILES, reason="no checkout of Primus beside this project (PRIMUS_EXAMPLES)")


def _id(path: Path) -> str:
    return "/".join(path.parts[-4:])


def _load(name: str) -> Loaded:
    return primus.load(ROOT / "examples" / name, env={})


def _outcome(path: Path) -> tuple[Loaded | None, str]:
    """The workload, or the reason why there is none."""
    try:
        return primus.load(path, env={}), ""
    except Unsupported as error:
        return None, str(error)


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=_id(p), marks=pytest.mark.night if i % 6 else ()) for i, p in enumerate(FILES)]
)
def test_loads_or_says_why_not(path: Path) -> None:
    if path.name in NO_EXPERIMENTS:
        refusal(primus.load, path, env={})
        return
    loaded, reason = _outcome(path)
    if loaded is None:
        assert any(word in reason for word in REASONS), reason
        return
    assert loaded.cluster in ("mi300x", "mi325x", "mi355x")
    assert any(text.startswith("cluster=") for text in loaded.assumed)
    assert loaded.recipe.recompute_granularity is not None
    assert loaded.recipe.data_parallel_sharding is not None
    assert all(
        any(word in reason for word in (*REASONS, "attention", "dense MLP")) for reason in loaded.model.unsupported
    )


@pytest.mark.parametrize("path", FILES[::9], ids=_id)
def test_projects_or_says_why_not(path: Path) -> None:
    if path.name in NO_EXPERIMENTS:
        return
    loaded, reason = _outcome(path)
    if loaded is None or loaded.recipe is None:
        assert any(word in reason for word in REASONS), reason
        return
    try:
        gpus = 8 * loaded.recipe.tp * loaded.recipe.pp * loaded.recipe.cp
        made = project(loaded.workload(gpus), catalogue.cluster(loaded.cluster or ""))
    except Unsupported as error:
        reason = str(error)
    if reason:
        assert any(word in reason for word in REASONS), reason
        return
    assert 0.01 < made.step_seconds < 10_000
    assert 0.005 < made.mfu < 0.9


# Read from the experiment and its presets by hand, without this project: fields of the recipe, of the model, and more.
BY_HAND: dict[str, dict[str, Any]] = {
    "megatron/configs/MI300X/llama3.1_405B-BF16-pretrain.yaml": {
        "tp": 8, "pp": 8, "vpp": 1, "ep": 1, "etp": 1, "micro_batch_size": 1, "global_batch_size": 256, "seq_length": 8192,
        "precision": "bf16", "recompute_granularity": "none", "data_parallel_sharding": "optim", "sequence_parallel": True,
        "overlap_grad_reduce": True, "overlap_param_gather": True, "gradient_accumulation_fusion": True, "lora": None,
        "num_layers": 126, "hidden_size": 16384, "num_query_groups": 8, "vocab_size": 131072, "mla": None, "moe": None,
        "counts": [16] * 6 + [15] * 2,
    },
    "megatron/configs/MI355X/deepseek_v3-BF16-pretrain.yaml": {
        "tp": 1, "pp": 16, "ep": 8, "etp": 1, "micro_batch_size": 2, "global_batch_size": 4096, "seq_length": 4096,
        "stages": 2, "recompute_granularity": "full", "moe_token_dispatcher_type": "flex", "moe_deepep_num_sms": 80,
        "moe_flex_dispatcher_backend": "deepep", "moe_grouped_gemm": "legacy", "sync_free_stage": 1,
        "moe_router_fusion": True, "moe_permute_fusion": True, "moe_router_force_load_balancing": True,
        "main_grads_dtype": "bf16", "exp_avg_dtype": "bf16", "main_params_dtype": "fp32", "moe_router_dtype": "fp32",
        "cross_entropy_fusion": "te", "use_turbo_rms_norm": True, "use_turbo_attention": False,
        "recompute_layer_ids": (0, 3, 4, 7, 8, 11, 12, 15, 19, 23, 31, 32, 35, 36, 39, 40, 43, 44, 47, 48, 51),
        "num_layers": 61, "mtp_num_layers": 0, "counts": [1, 1, *[2] * 29, 1],
    },
    "megatron/configs/MI300X/mixtral_8x22B_v0.1-BF16-pretrain.yaml": {
        "tp": 1, "pp": 4, "ep": 8, "micro_batch_size": 2, "global_batch_size": 128, "seq_length": 8192,
        "recompute_granularity": "none", "moe_grouped_gemm": "te", "moe_token_dispatcher_type": "alltoall",
        "gradient_accumulation_fusion": False, "cross_entropy_fusion": "te", "num_layers": 56, "counts": [14] * 4,
    },
    "megatron/configs/MI300X/grok1-BF16-pretrain.yaml": {
        "tp": 1, "pp": 4, "vpp": 4, "ep": 8, "micro_batch_size": 2, "global_batch_size": 128, "seq_length": 8192,
        "recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 8,
        "moe_grouped_gemm": "legacy", "num_layers": 64, "counts": [4] * 16,
    },
    "megatron/configs/MI300X/deepseek_v2_lite-FP8-pretrain.yaml": {
        "tp": 1, "pp": 1, "ep": 8, "micro_batch_size": 4, "global_batch_size": 640, "seq_length": 4096, "precision": "fp8",
        "fp8_recipe": "delayed", "mla": None, "moe_token_dispatcher_type": "flex", "moe_grouped_gemm": "fused",
        "sync_free_stage": 2, "use_turbo_attention": True, "moe_router_fusion": True, "num_layers": 27,
    },
    "megatron/configs/MI355X/llama3.1_70B-BF16-pretrain.yaml": {
        "tp": 1, "micro_batch_size": 1, "global_batch_size": 128, "seq_length": 8192, "recompute_granularity": "full",
        "recompute_method": "block", "recompute_num_layers": 30, "data_parallel_sharding": "optim_grads_params",
    },
    "megatron/configs/MI355X/llama3.1_8B-MXFP8-pretrain.yaml": {
        "micro_batch_size": 6, "global_batch_size": 384, "precision": "mxfp8", "grad_reduce_in_bf16": True,
        "use_turbo_attention": True, "use_turbo_gemm": True, "check_for_nan_in_loss_and_grad": False,
    },
    "megatron/configs/MI355X/minimax_m2.5-BF16-pretrain.yaml": {
        "pp": 4, "ep": 8, "micro_batch_size": 3, "global_batch_size": 768, "seq_length": 4096, "stages": 2,
        "recompute_granularity": "none", "moe_token_dispatcher_type": "flex", "moe_grouped_gemm": "legacy",
        "manual_gc": True, "num_layers": 62, "counts": [7, *[8] * 6, 7],
    },
    "megatron/configs/MI355X/gpt_oss_20B-FP8-mlperf-pretrain.yaml": {
        "ep": 8, "micro_batch_size": 2, "global_batch_size": 16, "seq_length": 8192, "precision": "fp8",
        "fp8_recipe": "tensorwise", "grad_reduce_in_bf16": True, "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": "fused", "window_size": 128, "window_attn_skip_freq": 2, "vocab_size": 128256,
        "mock_data": False,
    },
    "megatron/configs/MI355X/llama2_70B-BF16-sft-packed-mlperf_aligned.yaml": {
        "tp": 8, "micro_batch_size": 1, "global_batch_size": 8, "seq_length": 8192, "precision": "fp8",
        "fp8_param_gather": True, "adapter": (16, ("linear_qkv", "linear_proj")), "overlap_grad_reduce": False,
        "recompute_granularity": "none", "sequence_parallel": False, "vocab_size": 32000,
    },
    "torchtitan/configs/MI300X/deepseek_v3_16b-BF16-pretrain.yaml": {
        "tp": 1, "ep": 8, "etp": 1, "micro_batch_size": 6, "seq_length": 4096, "recompute_granularity": "none",
        "moe_grouped_gemm": "fused", "torch_compile": True, "moe_router_force_load_balancing": True, "num_layers": 27,
        "batch of 64 GPUs": 384,
    },
    "torchtitan/configs/MI300X/llama3.1_405B-FP8-pretrain.yaml": {
        "tp": 1, "micro_batch_size": 2, "seq_length": 2048, "recompute_granularity": "full", "precision": "fp8",
        "fp8_recipe": "tensorwise", "data_parallel_sharding": "optim_grads_params", "num_layers": 126,
        "batch of 64 GPUs": 128,
    },
    "torchtitan/configs/MI300X/gpt_oss_20B-BF16-pretrain.yaml": {
        "ep": 8, "micro_batch_size": 4, "seq_length": 4096, "recompute_granularity": "selective",
        "recompute_modules": ("op_sac",), "num_layers": 24, "batch of 64 GPUs": 256,
    },
    "maxtext/configs/MI300X/deepseek_v2_16B-bf16-pretrain.yaml": {
        "ep": 8, "micro_batch_size": 8, "seq_length": 4096, "moe_expert_capacity_factor": 1.25,
        "data_parallel_shard_size": 8, "recompute_saved": ("qkv_proj", "out_proj", "mlpwi", "mlpwo", "context"),
        "batch of 64 GPUs": 512, "num_layers": 27, "mock_data": True,
    },
    "maxtext/configs/MI300X/llama2_70B-nanoo_fp8-pretrain.yaml": {
        "tp": 1, "micro_batch_size": 15, "seq_length": 4096, "precision": "fp8", "data_parallel_shard_size": 8,
        "recompute_granularity": "full", "device_memory_fraction": 0.97, "num_layers": 80, "batch of 64 GPUs": 960,
    },
    "megatron_bridge/configs/MI300X/qwen3_32b_pretrain.yaml": {
        "tp": 2, "micro_batch_size": 16, "global_batch_size": 128, "seq_length": 2048, "recompute_granularity": "full",
        "lora": None, "sequence_parallel": False, "overlap_grad_reduce": True, "num_layers": 64,
    },
    "megatron_bridge/configs/MI355X/llama31_70b_lora_posttrain.yaml": {
        "tp": 8, "pp": 1, "micro_batch_size": 1, "global_batch_size": 128, "seq_length": 2048,
        "data_parallel_sharding": "no_shard", "cross_entropy_fusion": "none", "recompute_granularity": "none",
        "adapter": (16, ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")), "num_layers": 80,
    },
    "megatron_bridge/configs/MI355X/qwen3_30b_a3b_lora_posttrain_packed.yaml": {
        "tp": 1, "pp": 1, "ep": 8, "micro_batch_size": 8, "global_batch_size": 512, "seq_length": 4096,
        "adapter": (8, ("linear_qkv", "linear_proj")), "num_layers": 48,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_read_by_hand(name: str) -> None:
    loaded, expected = _load(name), dict(BY_HAND[name])
    recipe = loaded.recipe
    if "batch of 64 GPUs" in expected:
        assert loaded.workload(64).recipe.global_batch_size == expected.pop("batch of 64 GPUs")
    if "stages" in expected:
        assert virtual_stages(recipe) == expected.pop("stages")
    if "adapter" in expected:
        assert (recipe.lora.dim, recipe.lora.targets) == expected.pop("adapter")
    if "counts" in expected:
        made = project(loaded.workload(8 * recipe.tp * recipe.pp), catalogue.cluster(loaded.cluster or ""))
        found = chunks(loaded.model, made.resolved.workload.recipe)
        assert [len(chunk.layers) for chunk in found] == expected.pop("counts")
    read = {key: getattr(recipe if hasattr(recipe, key) else loaded.model, key) for key in expected}
    assert read == expected
