"""Attention of a decoder's layer to the output of an encoder, between its self-attention and its MLP.

NVIDIA/Megatron-LM@00caa53a megatron/core/transformer/attention.py (``CrossAttention``): queries from the normed
residual, keys and values from the encoder's tokens in one product. The encoder's output is one tensor for all layers.
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers.attention_core import Heads, attention_calls, with_saved_tensors
from projector.layers.linear import Linear, linear
from projector.layers.local import LayerView
from projector.layers.norms import norm, residual
from projector.operators.module import Module
from projector.operators.types import Stream

ENCODED = "encoder.out"
"""Storage of the encoder's output, which the encoder saves for all layers that read it."""
CROSS = frozenset({"attn", "cross_attn"})


def cross_attention(view: LayerView) -> tuple[Module, ...]:
    """Returns the modules of cross-attention, from its norm to the residual addition."""
    # a sample has as many tokens in the encoder as in the decoder unless the recipe states them
    d, length = view.model.kv_channels, view.recipe.encoder_seq_length or view.recipe.seq_length
    query, key, tokens = view.heads * d, view.kv_heads * d, view.batch * length
    encoder_view = replace(view, tokens=tokens, shard_tokens=-(-tokens // view.tp) if view.sp else tokens)
    bias = view.model.add_bias_linear or view.model.add_qkv_bias
    heads = Heads(view.heads, view.kv_heads, d, d)
    forward, backward = attention_calls(
        "cross_attn", heads, view, seq_q=view.recipe.seq_length, seq_k=length, causal=False
    )
    core = Module("cross_attn", forward=(forward,), backward_input=(backward,), tags=CROSS | {"core_attn"})
    queries = Linear(
        "cross_q", (query,), view.hidden, view.tokens, "column", bias=bias, after_norm=True, reads="pre_cross_norm.out"
    )
    both = Linear(
        "cross_kv",
        (2 * key,) if view.execution.fusion.qkv else (key, key),
        view.hidden,
        tokens,
        "column",
        bias=bias,
        parts=(key, key),
        reads=ENCODED,
        makes=(("cross_k", key), ("cross_v", key)),
    )
    out = Linear(
        "cross_proj", (view.hidden,), query, view.tokens, "row", bias=view.model.add_bias_linear, reads="cross_attn.out"
    )
    return (
        norm("pre_cross_norm", view, tags=CROSS),
        linear(replace(queries, makes=(("cross_q", query),)), view, CROSS),
        _without_memory(linear(both, encoder_view, CROSS), encoder_view),
        with_saved_tensors(core, heads, view, name="cross_attn", prefix="cross_", length=length),
        linear(out, view, CROSS),
        residual("cross_residual", view, CROSS, "pre_mlp_norm.in"),
    )


def _without_memory(kv: Module, view: LayerView) -> Module:
    """Returns keys and values whose input the encoder has saved (a narrowed copy is this layer's own); backward adds
    their gradient to that of later layers."""
    tensor = view.hidden_bytes
    add = Stream("cross_memory.grad_add", "elementwise", 2 * tensor, tensor)
    saves = tuple(
        saved._replace(storage="cross_kv.narrow", input=False) if saved.tensor == ENCODED else saved
        for saved in kv.saves
        if saved.tensor != ENCODED or view.quantised
    )
    return replace(kv, saves=saves, backward_input=(*kv.backward_input, add))
