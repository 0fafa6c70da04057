"""Trainings that take milliseconds a step, for tests."""

from collections.abc import Mapping
from typing import Any

LLAMA: dict[str, Any] = {
    "name": "small_llama", "family": "llama", "num_layers": 4, "hidden_size": 64, "ffn_hidden_size": 128,
    "num_attention_heads": 4, "num_query_groups": 2, "vocab_size": 512, "qk_layernorm": True,
}  # fmt: skip
GPT: dict[str, Any] = {
    "name": "small_gpt", "family": "gpt", "num_layers": 4, "hidden_size": 64, "ffn_hidden_size": 256,
    "num_attention_heads": 4, "vocab_size": 512, "gated_linear_unit": False, "normalization": "LayerNorm",
    "position_embedding_type": "learned_absolute", "max_position_embeddings": 64, "add_bias_linear": True,
    "untie_embeddings_and_output_weights": False,
}  # fmt: skip
QWEN: dict[str, Any] = {
    **LLAMA,
    "name": "small_qwen_moe",
    "family": "qwen",
    "moe": {
        "num_experts": 4,
        "moe_router_topk": 2,
        "moe_ffn_hidden_size": 64,
        "moe_layer_freq": 1,
        "moe_shared_expert_intermediate_size": 64,
        "moe_shared_expert_gate": True,
    },
}
DEEPSEEK: dict[str, Any] = {
    "name": "small_deepseek",
    "family": "deepseek",
    "num_layers": 4,
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "mla": {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 16},
    "moe": {
        "num_experts": 8,
        "moe_router_topk": 2,
        "moe_ffn_hidden_size": 32,
        "moe_layer_freq": [0, 1, 1, 1],
        "moe_shared_expert_intermediate_size": 32,
        "moe_router_score_function": "sigmoid",
    },
}
LATENT: dict[str, Any] = {key: value for key, value in DEEPSEEK.items() if key != "moe"} | {"name": "small_latent"}
RECIPE: dict[str, Any] = {
    "precision": "fp32", "micro_batch_size": 1, "global_batch_size": 4, "seq_length": 32,
}  # fmt: skip


def job(name: str, model: Mapping[str, Any] = LLAMA, gpus: int = 1, steps: int = 4, **recipe: Any) -> dict[str, Any]:
    """One entry of ``measure``."""
    return {"id": name, "model": dict(model), "recipe": {**RECIPE, **recipe}, "gpus": gpus, "steps": steps}
