"""More of :mod:`.huggingface_types`: decoders that differ from LLaMA or GPT-2 by a few words, and those that are refused.

Keys and defaults: transformers ``configuration_*.py`` and the files published with the models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from projector.intake.huggingface_types import (
    classic,
    dense_first,
    gpt2,
    llama,
    routed,
    sizes,
)
from projector.intake.values import Reader

_Fields = dict[str, object]


def _opt(c: Reader) -> _Fields:
    projected = c.integer("word_embed_proj_dim") not in (None, c.integer("hidden_size"))
    missing = ["embeddings of another width"] if projected else []
    missing += ["norms after attention and MLP"] if c.flag("do_layer_norm_before") is False else []
    found = sizes(
        c, num_layers="num_hidden_layers", hidden_size="hidden_size", ffn_hidden_size="ffn_dim",
        num_attention_heads="num_attention_heads", max_position_embeddings="max_position_embeddings",
    )  # fmt: skip
    return {**classic(c), **found} | {
        "position_embedding_type": "learned_absolute",
        "add_bias_linear": c.flag("enable_bias") is not False,
        "unsupported": missing,
    }


def _gpt_bigcode(c: Reader) -> _Fields:
    return {**gpt2(c), "num_query_groups": c.integer("n_head") if c.flag("multi_query") is False else 1}


def _dbrx(c: Reader) -> _Fields:
    attention, experts = c.within("attn_config"), c.within("ffn_config")
    found = sizes(
        c, num_layers="n_layers", hidden_size="d_model", num_attention_heads="n_heads", vocab_size="vocab_size",
        max_position_embeddings="max_seq_len",
    )  # fmt: skip
    return found | {
        "ffn_hidden_size": experts.integer("ffn_hidden_size"),
        "num_query_groups": attention.integer("kv_n_heads"),
        "normalization": "LayerNorm",
        "untie_embeddings_and_output_weights": not c.flag("tie_word_embeddings"),
        "moe": routed(experts, "moe_num_experts", "ffn_hidden_size", "moe_top_k"),
    }


def _chatglm(c: Reader) -> _Fields:
    missing = ["norms after attention and MLP"] if c.flag("apply_residual_connection_post_layernorm") else []
    groups = c.integer("multi_query_group_num") if c.flag("multi_query_attention") else None
    alike = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels")
    return {
        **sizes(c, **{name: name for name in alike}),
        **sizes(c, vocab_size="padded_vocab_size vocab_size", max_position_embeddings="seq_length"),
        "num_query_groups": groups or c.integer("num_attention_heads"),
        "normalization": "RMSNorm" if c.flag("rmsnorm") is not False else "LayerNorm",
        "add_bias_linear": bool(c.flag("add_bias_linear")),
        "add_qkv_bias": bool(c.flag("add_qkv_bias")),
        "untie_embeddings_and_output_weights": not c.flag("tie_word_embeddings"),
        "unsupported": missing,
    }


def _baichuan(c: Reader) -> _Fields:
    """The 7B has rotary positions and says how many; the 13B has ALiBi and does not."""
    rotary = c.has("max_position_embeddings")
    return {**llama(c), "position_embedding_type": "rope" if rotary else "alibi"}


def _phi(c: Reader) -> _Fields:
    """Phi-1 and Phi-2: attention and MLP beside one another on one norm, biases everywhere, the output layer's left out."""
    return {**llama(c), **classic(c), "untie_embeddings_and_output_weights": not c.flag("tie_word_embeddings"),
            "qk_layernorm": bool(c.flag("qk_layernorm")), "parallel_residual": True,
            "unmodelled": ("the bias of the output layer: left out",)}  # fmt: skip


def _gptj(c: Reader) -> _Fields:
    found = {**gpt2(c), "position_embedding_type": "rope", "parallel_residual": True}
    biases = "biases of attention (there are none) and of the output layer: as those of the MLP, and left out"
    return {**found, "untie_embeddings_and_output_weights": not c.flag("tie_word_embeddings"), "unmodelled": (biases,)}


def _qwen(c: Reader) -> _Fields:
    """The first Qwen: its width of the MLP is that of gate and up together."""
    width = c.integer("intermediate_size")
    return {**llama(c), "add_qkv_bias": True, "ffn_hidden_size": width // 2 if width else None}


def _deepseek_moe(c: Reader) -> _Fields:
    """DeepSeekMoE (arXiv:2401.06066): plain attention, dense layers first, shared experts of the routed width."""
    width = c.integer("moe_intermediate_size")
    moe = dense_first(c) | routed(c, "n_routed_experts", "moe_intermediate_size")
    moe["moe_shared_expert_intermediate_size"] = (c.integer("n_shared_experts") or 0) * (width or 0)
    return {**llama(c), "moe": moe}


DECODERS: Mapping[str, Callable[[Reader], _Fields]] = MappingProxyType(
    {
        "gpt_bigcode": _gpt_bigcode,
        "opt": _opt,
        "dbrx": _dbrx,
        "chatglm": _chatglm,
        "baichuan": _baichuan,
        "qwen": _qwen,
        "phi": _phi,
        "gptj": _gptj,
        "deepseek": _deepseek_moe,
    }
)
