"""Readers of ``config.json`` of decoders whose layers are not all made alike: searched blocks, double layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from projector.intake.huggingface_types import MODEL_TYPES, classic, given, llama, routed
from projector.intake.values import Reader, section

_Fields = dict[str, Any]
_MOST = 10_000  # layers, beyond which a count is a mistake that is reported elsewhere


def _searched(c: Reader) -> _Fields:
    """Nemotron-NAS (Puzzle, arXiv:2411.19146): a block says what it has of attention and of an MLP, and how wide.

    A width is ⌊2/3 · ``ffn_mult`` · hidden size⌋ rounded up to a multiple of 256 (NVIDIA/Megatron-LM@d98e8a64dd
    megatron/core/transformer/heterogeneous/heterogeneous_config.py); 0 heads or a width of 0: the block has none.
    """
    found, heads, hidden = llama(c), c.integer("num_attention_heads") or 0, c.integer("hidden_size") or 0
    blocks = c.raw("block_configs")
    halves = [(section(each, "attention"), section(each, "ffn")) for each in blocks] if isinstance(blocks, list) else []
    if len(halves) != (c.integer("num_hidden_layers") or 1) or not all(_readable(*half) for half in halves):
        c.problems.append(("block_configs", f"{len(halves)} blocks", "attention and ffn of each of num_hidden_layers"))
        return found
    groups = [0 if _none(one) else heads // int(one["n_heads_in_group"]) for one, _ in halves]
    widths = [0 if _none(other) else -(-int(2 * other["ffn_mult"] * hidden / 3) // 256) * 256 for _, other in halves]
    replaced = any(half.get("replace_with_linear") for pair in halves for half in pair)
    return found | {
        "ffn_hidden_size": max(widths) or None,
        "num_query_groups": max(groups) or None,
        "per_layer": {
            "num_attention_heads": [heads if each else 0 for each in groups],
            "num_query_groups": [each or max(groups) for each in groups],
            "ffn_hidden_size": widths,
        },
        "unsupported": ["a linear in place of attention or of an MLP"] if replaced else [],
    }


def _none(half: Mapping[str, Any]) -> bool:
    return bool(half.get("no_op") or half.get("replace_with_linear"))


def _readable(attention: Mapping[str, Any], ffn: Mapping[str, Any]) -> bool:
    group, width = attention.get("n_heads_in_group"), ffn.get("ffn_mult")
    heads = _none(attention) or (type(group) is int and group > 0)
    return heads and (_none(ffn) or (isinstance(width, (int, float)) and 0 < width < 1000))


def _longcat(c: Reader) -> _Fields:
    """LongCat-Flash (arXiv:2509.01322): a layer is twice latent attention and an MLP; experts read what the first MLP reads
    and are added after the second one, so a layer is two here, the first MLP a shared expert of the first."""
    layers, width = min(c.integer("num_layers") or 0, _MOST), c.integer("ffn_hidden_size")
    experts = routed(c, "n_routed_experts", "expert_ffn_hidden_size", "moe_topk")
    zero = given(zero_expert_num=c.integer("zero_expert_num"), moe_shared_expert_intermediate_size=width)
    found = MODEL_TYPES["deepseek_v3"](c)
    return found | {
        "num_layers": 2 * layers or None,
        "ffn_hidden_size": width,
        "mtp_num_layers": None,
        "moe": experts | zero | {"moe_router_enable_expert_bias": True, "moe_layer_freq": [1, 0] * layers},
    }


def _step3(c: Reader) -> _Fields:
    """Step-3 (arXiv:2507.19427): queries through a latent, few key and value heads, experts in the layers that are named."""
    layers, chosen = min(c.integer("num_hidden_layers") or 0, _MOST), c.integers("moe_layers_enum")
    moe = routed(c, "moe_num_experts", "moe_intermediate_size", "moe_top_k")
    found = llama(c) | {"num_query_groups": c.integer("num_attention_groups"), "share_q_dim": c.integer("share_q_dim")}
    freq = [int(i in set(chosen or range(1, layers))) for i in range(layers)]
    shared = given(moe_shared_expert_intermediate_size=c.integer("share_expert_dim"))
    return found | {"moe": moe | shared | {"moe_layer_freq": freq}}


def _bert(c: Reader) -> _Fields:
    """BERT (arXiv:1810.04805), trained on masked words alone: every token sees every other; its norms stand behind attention
    and MLP, as many as before them."""
    found = {**classic(c), **llama(c), "causal": False, "embedding_layernorm": True, "masked_lm_head": True}
    named = {"gated_linear_unit": False, "normalization": "LayerNorm", "add_bias_linear": True, "add_qkv_bias": False}
    tied = {"untie_embeddings_and_output_weights": c.flag("tie_word_embeddings") is False}
    segments = {"num_tokentypes": c.integer("type_vocab_size"), "position_embedding_type": "learned_absolute"}
    return found | named | tied | segments


BLOCKS: Mapping[str, Callable[[Reader], _Fields]] = MappingProxyType(
    {
        "nemotron-nas": _searched,
        "longcat_flash": _longcat,
        "step3_text": _step3,
        **dict.fromkeys(("bert", "roberta", "xlm-roberta"), _bert),
    }
)
