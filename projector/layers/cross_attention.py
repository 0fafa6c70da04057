"""Attention of a decoder's layer to the output of an encoder, between its self-attention and its MLP.

NVIDIA/Megatron-LM@00caa53a megatron/core/transformer/attention.py (``CrossAttention``): queries from the normed residual,
keys and values from the encoder's tokens in one product. The encoder's output is one tensor for all layers.
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers.attention_core import Heads, attend, remembering
from projector.layers.linear import Linear, linear
from projector.layers.local import Local
from projector.layers.norms import norm, residual
from projector.operators.part import Part
from projector.operators.types import Stream

ENCODED = "encoder.out"
"""The storage of the encoder's output, which the encoder saves for all who read it."""
CROSS = frozenset({"attn", "cross_attn"})


def encoder_length(lo: Local) -> int:
    """Returns the tokens of a sample in the encoder: as many as in the decoder where that is not stated."""
    return lo.recipe.encoder_seq_length or lo.recipe.seq_length


def cross_attention(lo: Local) -> tuple[Part, ...]:
    """From its norm to the residual addition."""
    d, length = lo.model.kv_channels, encoder_length(lo)
    query, key, tokens = lo.heads * d, lo.kv_heads * d, lo.batch * length
    there = replace(lo, tokens=tokens, shard_tokens=-(-tokens // lo.tp) if lo.sp else tokens)
    bias = lo.model.add_bias_linear or lo.model.add_qkv_bias
    heads = Heads(lo.heads, lo.kv_heads, d, d)
    forward, backward = attend("cross_attn", heads, lo, seq_q=lo.recipe.seq_length, seq_k=length, causal=False)
    core = Part("cross_attn", forward=(forward,), backward_input=(backward,), tags=CROSS | {"core_attn"})
    queries = Linear(
        "cross_q", (query,), lo.hidden, lo.tokens, "column", bias=bias, after_norm=True, reads="pre_cross_norm.out"
    )
    both = Linear(
        "cross_kv",
        (2 * key,) if lo.execution.fusion.qkv else (key, key),
        lo.hidden,
        tokens,
        "column",
        bias=bias,
        parts=(key, key),
        reads=ENCODED,
        makes=(("cross_k", key), ("cross_v", key)),
    )
    out = Linear(
        "cross_proj", (lo.hidden,), query, lo.tokens, "row", bias=lo.model.add_bias_linear, reads="cross_attn.out"
    )
    return (
        norm("pre_cross_norm", lo.hidden, lo.shard_tokens, lo, tags=CROSS),
        linear(replace(queries, makes=(("cross_q", query),)), lo, CROSS),
        _without_memory(linear(both, there, CROSS), there),
        remembering(core, heads, lo, name="cross_attn", prefix="cross_", length=length),
        linear(out, lo, CROSS),
        residual("cross_residual", lo, CROSS, "pre_mlp_norm.in"),
    )


def _without_memory(kv: Part, there: Local) -> Part:
    """Keys and values whose input the encoder has saved (a narrowed copy is this layer's own); backward adds their gradient
    to that of the layers after."""
    tensor = there.hidden_bytes
    add = Stream("cross_memory.grad_add", "elementwise", 2 * tensor, tensor)
    own = tuple(
        each._replace(storage="cross_kv.narrow", input=False) if each.tensor == ENCODED else each
        for each in kv.saves
        if each.tensor != ENCODED or there.quantised
    )
    return replace(kv, saves=own, backward_input=(*kv.backward_input, add))
