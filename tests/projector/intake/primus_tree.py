"""A small Primus checkout for tests: presets and experiments written from keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

__all__ = ["checkout", "experiment"]

_MODULES: dict[str, dict[str, Any]] = {
    "megatron/pre_trainer.yaml": {
        "extends": ["trainer_base.yaml"],
        "global_batch_size": 16,
        "use_distributed_optimizer": True,
    },
    "megatron/trainer_base.yaml": {
        "micro_batch_size": 2,
        "bf16": True,
        "recompute_granularity": None,
        "recompute_num_layers": None,
        "recompute_activations": False,
        "use_flash_attn": False,
        "enable_primus_turbo": False,
        "use_turbo_deepep": False,
        "turbo_sync_free_moe_stage": 0,
        "overlap_grad_reduce": False,
    },
    "torchtitan/pre_trainer.yaml": {"training": {"local_batch_size": 8, "seq_len": 2048, "mock_data": True}},
    "maxtext/pre_trainer.yaml": {"remat_policy": "full", "weight_dtype": "bfloat16", "dtype": "bfloat16"},
    "megatron_bridge/sft_trainer.yaml": {"stage": "sft", "enable_primus_turbo": True},
    "megatron_bridge/pretrain_trainer.yaml": {"stage": "pretrain"},
}
_DENSE = {
    "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32, "num_query_groups": 8,
    "group_query_attention": True, "q_lora_rank": None, "num_experts": None, "expert_tensor_parallel_size": None,
    "swiglu": True, "normalization": "RMSNorm", "position_embedding_type": "rope",
    "untie_embeddings_and_output_weights": True, "add_bias_linear": False, "sequence_parallel": True,
    "tokenizer_model": "meta-llama/Llama-3.1-8B",
}  # fmt: skip
_MODELS: dict[str, dict[str, Any]] = {
    "megatron/base.yaml": {"hidden_dropout": 0.0},
    "megatron/dense.yaml": {"bases": ["base.yaml"], **_DENSE},
    "megatron/experts.yaml": {
        "extends": "dense.yaml",
        "num_experts": 16,
        "moe_router_topk": 2,
        "moe_ffn_hidden_size": 2048,
        "moe_layer_freq": 1,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "alltoall",
    },
    "torchtitan/llama3.1_8B.yaml": {"model": {"name": "llama3", "flavor": "8B", "converters": ["primus_turbo"]}},
    "torchtitan/deepseek.yaml": {"model": {"name": "deepseek_v3", "flavor": "16B", "converters": []}},
    "maxtext/llama3_8B.yaml": {"model_name": "llama3-8b"},
    "maxtext/mixtral_8x7B.yaml": {"model_name": "mixtral-8x7b"},
    "maxtext/own.yaml": {"model_name": "default", "base_num_decoder_layers": 12, "decoder_block": "mixtral"},
    "megatron_bridge/qwen3_8b.yaml": {
        "recipe": "qwen.qwen3",
        "flavor": "qwen3_8b_finetune_config",
        "hf_path": "Qwen/Qwen3-8B",
    },
}


def checkout(root: Path) -> Path:
    """``root`` with ``primus/configs`` below it."""
    for kind, files in (("modules", _MODULES), ("models", _MODELS)):
        for name, content in files.items():
            path = root / "primus/configs" / kind / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump(content))
    return root


def experiment(
    root: Path,
    preset: str,
    framework: str = "megatron",
    config: str = "pre_trainer.yaml",
    trainer: str = "pre_trainer",
    folder: str = "examples/configs/MI300X",
    beside: dict[str, Any] | None = None,
    **overrides: Any,
) -> Path:
    """The file of an experiment in ``folder`` of the checkout; ``beside``: keys next to ``modules``."""
    module = {"framework": framework, "config": config, "model": f"{preset}.yaml", "overrides": overrides}
    head = {"work_group": "a", "user_name": "b", "exp_name": "c", "workspace": "d"}
    path = root / folder / "exp.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({**head, **(beside or {}), "modules": {trainer: module}}))
    return path
