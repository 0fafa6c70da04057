"""What one decoder layer saves for its backward: named tensors, so that recompute can drop them one by one.

Each storage counts once, however many operators read it. Names serve :mod:`projector.memory.recompute`; their order
is that of the forward. Sources: Megatron-LM core/transformer/{attention,multi_latent_attention,mlp}.py and
TransformerEngine pytorch/module/{layernorm_linear,linear}.py; the bytes reproduce measured peaks (see tests).
"""

from __future__ import annotations

from functools import lru_cache

from projector.frameworks.types import Resolved
from projector.memory.moe import saved_by_experts
from projector.memory.sizes import QUANTISED, Sizes, quantised_bytes, sizes
from projector.workload.model import LayerKind, Model

__all__ = ["kept_until_weight_gradient", "saved"]

# Korthikanti et al. (arXiv:2205.05198) §4: softmax output 2 B, its dropout mask 1 B and output 2 B per attention score.
_SCORE_BYTES = 5.0
# The saved tensors that an adapter of that linear reads.
_ADAPTED = {
    "linear_qkv": ("attention_norm_out",),
    "linear_proj": ("attention_out",),
    "linear_fc1": ("mlp_norm_out", "expert_input"),
    "linear_fc2": ("activation_out", "expert_activation_out", "shared_activation_out"),
}


@lru_cache(maxsize=1024)
def saved(resolved: Resolved, kind: LayerKind) -> dict[str, float]:
    """Bytes saved by one layer and micro-batch without recompute, by tensor name (shared: not to be changed)."""
    workload, execution = resolved.workload, resolved.execution
    model, size = workload.model, sizes(resolved)
    out = _norm("attention_norm", model, size)
    if model.mla is None:
        out |= _grouped_query_attention(resolved, size)
    else:
        out |= _latent_attention(resolved, size)
    if execution.attention_materialised:
        out["attention_scores"] = _SCORE_BYTES * size.heads * size.tokens * workload.recipe.seq_length
    out |= _norm("mlp_norm", model, size)
    out |= saved_by_experts(resolved) if kind.moe else _dense_mlp(resolved, size)
    if not execution.fused_norm and not execution.elementwise_compiled:
        # an unfused norm saves the fp32 copy of its input
        out["unfused_norms"] = 2 * 4.0 * size.shard * size.hidden
    return _quantised(_without_frozen_inputs(out, resolved), resolved, kind) | _adapter_inputs(out, resolved)


def kept_until_weight_gradient(resolved: Resolved, kind: LayerKind) -> float:
    """Bytes kept between the halves of a split backward: inputs of the linears and their output gradients."""
    size, model = sizes(resolved), resolved.workload.model
    tensors = saved(resolved, kind)
    inputs = sum(tensors.get(name, 0.0) for name in ("attention_norm_out", "mlp_norm_out", "attention_out"))
    inputs += tensors.get("activation_out", 0.0) + tensors.get("expert_activation_out", 0.0)
    inputs += tensors.get("expert_input", 0.0)
    qkv = (size.heads + 2 * size.groups) * model.head_dim_qk
    width = 2 if model.gated_linear_unit else 1
    if kind.moe:
        mlp = size.element * size.received * (width * size.expert_ffn + size.hidden)
    else:
        mlp = size.element * size.tokens * width * size.ffn + size.hidden_bytes
    return inputs + size.element * size.tokens * qkv + size.hidden_bytes + mlp


def _norm(name: str, model: Model, size: Sizes) -> dict[str, float]:
    statistics = 8.0 if model.normalization == "LayerNorm" else 4.0
    return {
        f"{name}_in": size.hidden_bytes,
        f"{name}_statistics": statistics * size.shard,
        f"{name}_out": size.hidden_bytes,
    }


def _grouped_query_attention(resolved: Resolved, size: Sizes) -> dict[str, float]:
    model = resolved.workload.model
    row = size.element * size.tokens * model.kv_channels
    return {
        "q": row * size.heads,
        "k": row * size.groups,
        "v": row * size.groups,
        **_attention_output(resolved, size, row * size.heads),
    }


def _latent_attention(resolved: Resolved, size: Sizes) -> dict[str, float]:
    """MLA with its latent norms fused into the up projections: latents and their norms, then full-width q, k, v."""
    mla = resolved.workload.model.mla
    assert mla is not None
    latent = size.element * size.shard
    head = size.element * size.tokens * size.heads
    qk = mla.qk_head_dim + mla.qk_pos_emb_head_dim
    out: dict[str, float] = {}
    if mla.q_lora_rank is not None:
        out |= {
            "q_latent": latent * mla.q_lora_rank + 4.0 * size.shard,
            "q_latent_norm": latent * mla.q_lora_rank,
        }
    return out | {
        "kv_latent": latent * mla.kv_lora_rank,
        "kv_latent_statistics": 4.0 * size.shard,
        "kv_latent_norm": latent * mla.kv_lora_rank,
        "q": head * qk,
        "k": head * qk,
        "v": head * mla.v_head_dim,
        **_attention_output(resolved, size, head * mla.v_head_dim),
    }


def _attention_output(resolved: Resolved, size: Sizes, output: float) -> dict[str, float]:
    """The output (shared with the projection) and the fp32 log-sum-exp. An all-to-all context-parallel attention keeps
    its output before the exchange as well (TransformerEngine ≥ 2.8, context_parallel.py)."""
    recipe = resolved.workload.recipe
    out = {"attention_out": output}
    if not resolved.execution.attention_materialised:
        out["attention_lse"] = 4.0 * size.tokens * size.heads
    if recipe.cp > 1 and recipe.cp_comm_type == "a2a" and resolved.execution.cp_a2a_keeps_output:
        out["attention_out_before_a2a"] = output
    return out


def _dense_mlp(resolved: Resolved, size: Sizes) -> dict[str, float]:
    model, recipe = resolved.workload.model, resolved.workload.recipe
    one = size.element * size.tokens * size.ffn
    # --activation-func-fp8-input-store (Megatron-LM core/fusions/fused_bias_swiglu.py)
    stored = 0.5 if recipe.activation_func_fp8_input_store and model.gated_linear_unit else 1.0
    out = {"fc1_out": one * (2 if model.gated_linear_unit else 1) * stored, "activation_out": one}
    if model.gated_linear_unit and not (recipe.bias_activation_fusion or resolved.execution.elementwise_compiled):
        out["gate_activation"] = one
    return out


def _without_frozen_inputs(tensors: dict[str, float], resolved: Resolved) -> dict[str, float]:
    """A frozen linear needs no weight gradient, so it saves its input only where an adapter reads it."""
    lora = resolved.workload.recipe.lora
    if lora is None:
        return tensors
    readers = {
        "attention_norm_out": "linear_qkv",
        "mlp_norm_out": "linear_fc1",
        "expert_input": "linear_fc1",
        "activation_out": "linear_fc2",
        "expert_activation_out": "linear_fc2",
        "shared_activation_out": "linear_fc2",
    }
    return {name: v for name, v in tensors.items() if readers.get(name, lora.targets[0]) in lora.targets}


def _adapter_inputs(tensors: dict[str, float], resolved: Resolved) -> dict[str, float]:
    """What low-rank adapters save: the input of their first matrix in the activations' type, a copy of its own where
    dropout or a quantised base linear leaves no other; with dropout also its mask, one byte an element
    (Megatron-Bridge peft/lora.py, NeMo collections/llm/peft/lora.py)."""
    recipe, execution = resolved.workload.recipe, resolved.execution
    if recipe.lora is None:
        return {}
    shared = not execution.adapter_dropout and recipe.precision not in QUANTISED
    out: dict[str, float] = {}
    for target, names in _ADAPTED.items():
        width = sum(tensors.get(name, 0.0) for name in names) if target in recipe.lora.targets else 0.0
        if width and not shared:
            out[f"adapter_{target}_input"] = width
        if width and execution.adapter_dropout:
            out[f"adapter_{target}_mask"] = width / sizes(resolved).element
    return out


def _quantised(tensors: dict[str, float], resolved: Resolved, kind: LayerKind) -> dict[str, float]:
    """8- and 4-bit linears save the quantised copy of an input that nothing else needs; everything that attention,
    norms, router and activation read stays as it is (TransformerEngine pytorch/module, save_original_input)."""
    recipe = resolved.workload.recipe
    if recipe.precision not in QUANTISED:
        return tensors
    ratio = quantised_bytes(recipe) / 2.0
    shrunk = {"attention_norm_out", "activation_out", "shared_activation_out"}
    if recipe.moe_grouped_gemm != "legacy":
        shrunk |= {"expert_input", "expert_activation_out"}
    if not kind.moe:
        shrunk.add("mlp_norm_out")
    if recipe.fp8_dot_product_attention:
        shrunk |= {"q", "k", "v", "attention_out"}
    return {name: value * ratio if name in shrunk else value for name, value in tensors.items()}
