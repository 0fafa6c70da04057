"""More of :mod:`.huggingface_types`: models of recurrent layers, alone or among layers of attention.

Keys and defaults: transformers ``configuration_*.py`` of each ``model_type`` and the files published with the models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from projector.intake.huggingface_table import depth, given, read, routed, sizes
from projector.intake.values import Reader

_Fields = dict[str, object]


def _letters(c: Reader, keys: tuple[str, ...], letters: Mapping[str, str]) -> str:
    """Returns one letter a layer for a list of words: that of the first mark which the word contains; attention is ``*``."""
    words = next((value for key in keys if isinstance(value := c.raw(key), (list, tuple))), ())
    letters = {**letters, "attention": "*"}
    if unknown := sorted({str(word) for word in words if not any(mark in str(word) for mark in letters)}):
        c.problems.append((keys[0], ", ".join(unknown), f"kinds of layers: {', '.join(letters)}"))
    return "".join(next((at for mark, at in letters.items() if mark in str(word)), "") for word in words)


def _step_rank(c: Reader, key: str, hidden: int) -> int:
    """Returns the rank of the step sizes' projection; ``auto``: a sixteenth of the hidden size, rounded up."""
    return -(-hidden // 16) if c.raw(key) in (None, "auto") else c.integer(key) or 0


def _mamba1(c: Reader, tied: bool) -> _Fields:
    hidden = c.integer("hidden_size") or 0
    inner = c.integer("intermediate_size") or (c.integer("expand") or 2) * hidden
    fields = given(
        inner=inner,
        dt_rank=_step_rank(c, "time_step_rank", hidden),
        **sizes(c, state_dim="state_size", conv_width="conv_kernel"),
    )
    said = c.flag("tie_word_embeddings")
    return {
        **read("_mixers_alone", c),
        "hybrid_layer_pattern": "S" * depth(c),
        "mamba1": fields,
        "untie_embeddings_and_output_weights": not (tied if said is None else said),
    }


def _jamba(c: Reader) -> _Fields:
    """Reads Jamba: attention every n-th layer from an offset on, else Mamba-1; experts by a rule of the same kind."""
    layers, hidden = depth(c), c.integer("hidden_size") or 0
    every, at = c.integer("attn_layer_period") or 8, c.integer("attn_layer_offset")
    fields: _Fields = {
        **read("llama", c),
        "position_embedding_type": "none",
        "mixer_pattern": "".join("*" if i % every == (4 if at is None else at) else "S" for i in range(layers)),
        "mamba1": given(
            inner=(c.integer("mamba_expand") or 2) * hidden,
            dt_rank=_step_rank(c, "mamba_dt_rank", hidden),
            **sizes(c, state_dim="mamba_d_state", conv_width="mamba_d_conv"),
            norms=True,
        ),
    }
    moe = routed(c, "num_experts", "intermediate_size")
    if (c.integer("num_experts") or 1) == 1:
        return fields
    every, at = c.integer("expert_layer_period") or 2, c.integer("expert_layer_offset")
    freq = [int(i % every == (1 if at is None else at)) for i in range(layers)]
    return {**fields, "moe": moe | {"moe_layer_freq": freq}}


def _heads(c: Reader, chunk: int = 256) -> _Fields:
    """Reads the sizes of Mamba-2 by the names of Falcon-H1, Bamba and Granite 4."""
    hidden, heads = c.integer("hidden_size") or 0, c.integer("mamba_n_heads") or 128
    inner = c.integer("mamba_d_ssm") or (c.integer("mamba_expand") or 2) * hidden
    width = c.raw("mamba_d_head")
    return given(
        mamba_num_heads=heads,
        mamba_head_dim=inner // max(1, heads) if width in (None, "auto") else c.integer("mamba_d_head"),
        mamba_num_groups=c.integer("mamba_n_groups") or 1,
        mamba_state_dim=c.integer("mamba_d_state") or chunk,
        chunk=c.integer("mamba_chunk_size") or chunk,
        **sizes(c, conv_width="mamba_d_conv"),
    )


def _falcon_h1(c: Reader) -> _Fields:
    mamba = {**_heads(c), "grouped_norm": bool(c.flag("mamba_rms_norm"))}
    return {**read("llama", c), "mixer_pattern": "P" * depth(c), "mamba": mamba}


def _zamba2(c: Reader) -> _Fields:
    """Reads Zamba2: hybrid layers have one of ``num_mem_blocks`` shared blocks, by turns, before their mixer."""
    hidden, heads, at = (
        c.integer("hidden_size") or 0,
        c.integer("num_attention_heads") or 1,
        c.integers("hybrid_layer_ids"),
    )
    states = c.integer("n_mamba_heads") or 8
    listed = "".join("Z" if i in set(at or ()) else "M" for i in range(depth(c)))
    mlps, attention = c.flag("use_shared_mlp_adapter"), c.flag("use_shared_attention_adapter")
    blocks = given(**sizes(c, num_mem_blocks="num_mem_blocks", adapter_rank="adapter_rank"))
    return {
        **read("llama", c),
        "ffn_hidden_size": c.integer("intermediate_size", "ffn_hidden_size") or 4 * hidden,
        "kv_channels": c.integer("attention_head_dim") or 2 * hidden // max(1, heads),
        "position_embedding_type": "rope" if c.flag("use_mem_rope") else "none",
        "untie_embeddings_and_output_weights": c.flag("tie_word_embeddings") is False,
        "hybrid_layer_pattern": _letters(c, ("layers_block_type",), {"hybrid": "Z", "mamba": "M", "linear": "M"})
        or listed,
        "shared_blocks": blocks | {"use_shared_attention_adapter": bool(attention)},
        "mamba": given(
            mamba_num_heads=states,
            mamba_head_dim=(c.integer("mamba_expand") or 2) * hidden // max(1, states),
            mamba_num_groups=c.integer("mamba_ngroups") or 1,
            mamba_state_dim=c.integer("mamba_d_state") or 64,
            **sizes(c, conv_width="mamba_d_conv", chunk="chunk_size"),
        ),
        "unsupported": ["shared blocks without adapters of their MLP"] if mlps is False else [],
    }


def _bamba(c: Reader) -> _Fields:
    at = set(c.integers("attn_layer_indices") or ())
    letters = "".join("*" if i in at else "M" for i in range(depth(c)))
    return {**read("llama", c), "mixer_pattern": letters, "mamba": _heads(c)}


def _lfm2(c: Reader) -> _Fields:
    layers, full = depth(c), c.integers("full_attn_idxs")
    letters = _letters(c, ("layer_types",), {"conv": "C"})
    letters = letters or "".join("*" if i in set(full or ()) else "C" for i in range(layers))
    fields = {
        **read("llama", c),
        "qk_layernorm": True,
        "untie_embeddings_and_output_weights": c.flag("tie_embedding", "tie_word_embeddings") is False,
        "mixer_pattern": letters,
        "short_convolution": given(conv_width=c.integer("conv_L_cache")),
    }
    width = c.integer("block_ff_dim", "intermediate_size")
    if c.flag("block_auto_adjust_ff_dim") and width:
        multiple = c.integer("block_multiple_of") or 256
        width = -(-int((c.number("block_ffn_dim_multiplier") or 1.0) * (2 * width // 3)) // multiple) * multiple
    fields["ffn_hidden_size"] = width
    if not c.integer("num_experts"):
        return fields
    first = c.integer("num_dense_layers") or 0
    freq = {"moe_layer_freq": [int(i >= first) for i in range(layers)]}
    sigmoid = {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
    return {**fields, "moe": routed(c, "num_experts", "moe_intermediate_size") | freq | sigmoid}


HYBRIDS: Mapping[str, Callable[[Reader], _Fields]] = MappingProxyType(
    {
        "mamba": lambda c: _mamba1(c, tied=True),
        "falcon_mamba": lambda c: _mamba1(c, tied=False),
        "jamba": _jamba,
        "falcon_h1": _falcon_h1,
        "bamba": _bamba,
        "zamba2": _zamba2,
        "lfm2": _lfm2,
        "lfm2_moe": _lfm2,
    }
)
