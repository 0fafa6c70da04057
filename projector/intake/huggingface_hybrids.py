"""More of :mod:`.huggingface_types`: models of recurrent layers among layers of attention that words alone cannot say.

Keys and defaults: transformers ``configuration_*.py`` of each ``model_type`` and the files published with the models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from projector.intake.huggingface_table import depth, given, read, routed, sizes
from projector.intake.values import Reader

_Fields = dict[str, object]


def _letters(c: Reader, key: str, letters: Mapping[str, str]) -> str:
    """Returns one letter a layer for a list of words: that of the first mark which the word contains; attention is ``*``."""
    stated = c.raw(key)
    words = stated if isinstance(stated, (list, tuple)) else ()
    letters = {**letters, "attention": "*"}
    if unknown := sorted({str(word) for word in words if not any(mark in str(word) for mark in letters)}):
        c.problems.append((key, ", ".join(unknown), f"kinds of layers: {', '.join(letters)}"))
    return "".join(next((at for mark, at in letters.items() if mark in str(word)), "") for word in words)


def _jamba(c: Reader) -> _Fields:
    """Reads Jamba: attention every n-th layer from an offset on, else Mamba-1; experts by a rule of the same kind."""
    layers = depth(c)
    every, at = c.integer("attn_layer_period") or 8, c.integer("attn_layer_offset")
    fields: _Fields = {
        **read("_jamba", c),
        "mixer_pattern": "".join("*" if i % every == (4 if at is None else at) else "S" for i in range(layers)),
    }
    moe = routed(c, "num_experts", "intermediate_size")
    if (c.integer("num_experts") or 1) == 1:
        return fields
    every, at = c.integer("expert_layer_period") or 2, c.integer("expert_layer_offset")
    freq = [int(i % every == (1 if at is None else at)) for i in range(layers)]
    return {**fields, "moe": moe | {"moe_layer_freq": freq}}


def _zamba2(c: Reader) -> _Fields:
    """Reads Zamba2: hybrid layers have one of ``num_mem_blocks`` shared blocks, by turns, before their mixer."""
    hidden, heads, at = (
        c.integer("hidden_size") or 0,
        c.integer("num_attention_heads") or 1,
        c.integers("hybrid_layer_ids"),
    )
    listed = "".join("Z" if i in set(at or ()) else "M" for i in range(depth(c)))
    mlps, attention = c.flag("use_shared_mlp_adapter"), c.flag("use_shared_attention_adapter")
    blocks = given(**sizes(c, num_mem_blocks="num_mem_blocks", adapter_rank="adapter_rank"))
    return {
        **read("_zamba2", c),
        "ffn_hidden_size": c.integer("intermediate_size", "ffn_hidden_size") or 4 * hidden,
        "kv_channels": c.integer("attention_head_dim") or 2 * hidden // max(1, heads),
        "position_embedding_type": "rope" if c.flag("use_mem_rope") else "none",
        "untie_embeddings_and_output_weights": c.flag("tie_word_embeddings") is False,
        "hybrid_layer_pattern": _letters(c, "layers_block_type", {"hybrid": "Z", "mamba": "M", "linear": "M"})
        or listed,
        "shared_blocks": blocks | {"use_shared_attention_adapter": bool(attention)},
        "unsupported": ["shared blocks without adapters of their MLP"] if mlps is False else [],
    }


def _lfm2(c: Reader) -> _Fields:
    """Reads LFM2, whose MLP's width is stated before it is cut to two thirds and rounded up, unless a flag denies it; the
    model with experts has neither flag nor cut."""
    width = c.integer("block_ff_dim", "intermediate_size")
    cut = c.flag("block_auto_adjust_ff_dim")
    if width and (cut or (cut is None and not c.has("num_experts"))):
        multiple = c.integer("block_multiple_of") or 256
        width = -(-int((c.number("block_ffn_dim_multiplier") or 1.0) * (2 * width // 3)) // multiple) * multiple
    tied = c.flag("tie_embedding", "tie_word_embeddings")
    return {**read("_lfm2", c), "ffn_hidden_size": width, "untie_embeddings_and_output_weights": tied is False}


HYBRIDS: Mapping[str, Callable[[Reader], _Fields]] = MappingProxyType(
    {"jamba": _jamba, "zamba2": _zamba2, "lfm2": _lfm2, "lfm2_moe": _lfm2}
)
