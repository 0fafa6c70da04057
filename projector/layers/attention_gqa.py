"""Grouped-query (and multi-head) self-attention: norm, QKV, rotary embedding, core attention, output projection.

Kernel list counted from NVIDIA/Megatron-LM@d98e8a64dd core/transformer/{attention,transformer_layer}.py.
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers.attention_core import Heads
from projector.layers.context_parallel import core_attention
from projector.layers.linear import Linear, linear
from projector.layers.local import Local
from projector.layers.norms import norm, residual, sandwich, vectors
from projector.operators.part import Part
from projector.operators.saved import Saved
from projector.operators.types import Operator, Stream
from projector.operators.weights import Weight
from projector.parameter import parameter
from projector.workload.model import LayerKind, Model

__all__ = ["applies", "attention", "rotary", "uses_rotary"]

ATTN = frozenset({"attn"})
_UNFUSED_ROPE_LAUNCHES, _UNFUSED_ROPE_BYTES, _STRIDED_ROPE_BYTES = parameter(
    (14, 18.0, 10.0),
    unit="launches, B/element",
    kind="derived",
    source="both tensors: slice, neg, cat, 2 mul, add, cat; of halves of heads, and broadcast: neg (2), 2 mul (8)",
)


def uses_rotary(lo: Local) -> bool:
    return lo.model.position_embedding_type in ("rope", "yarn", "mrope")


def applies(model: Model) -> bool:
    return model.mla is None


def attention(kind: LayerKind, lo: Local) -> tuple[Part, ...]:
    """The attention half of a layer of ``kind``, from its input norm to the residual addition."""
    model, d = lo.model, lo.model.kv_channels
    query, key = lo.heads * d, lo.kv_heads * d
    bias = model.add_bias_linear
    gate = (query,) if model.attention_output_gate else ()
    widths = (query, *gate, key) if model.attention_k_eq_v else (query, *gate, key, key)
    qkv = Linear(
        name="qkv",
        outputs=(sum(widths),) if lo.execution.fusion.qkv else widths,
        inputs=lo.hidden,
        rows=lo.tokens,
        parallel="column",
        bias=bias or model.add_qkv_bias,
        after_norm=True,
        parts=widths,
        target="linear_qkv",
        reads="input_norm.out",
        makes=(("q", query), ("k", key), ("v", key), *(("attn_gate", width) for width in gate)),
    )
    proj = Linear(
        name="proj",
        outputs=(lo.hidden,),
        inputs=query,
        rows=lo.tokens,
        parallel="row",
        bias=bias,
        target="linear_proj",
        reads="attn_gate.out" if gate else "core_attn.out",
    )
    heads = Heads(heads=lo.heads, kv_heads=lo.kv_heads, qk=d, v=d, window=kind.window)
    return (
        norm("input_norm", lo.hidden, lo.shard_tokens, lo, tags=ATTN | {"attn_norm"}),
        linear(qkv, lo, ATTN | {"qkv_linear", "qkv_proj"}),
        _split(query, key, lo),
        *_qk_norm(query, key, lo),
        *_rope(query, key, lo),
        core_attention(heads, lo, ATTN | {"core_attn", "context"}),
        *_sinks(lo),
        *_gate(query, lo),
        linear(proj, lo, ATTN | {"attn_proj", "out_proj"}),
        *sandwich("post_attn_norm", lo, ATTN, "proj.out"),
        residual("attn_residual", lo, ATTN, "pre_mlp_norm.in"),
    )


def _gate(query: int, lo: Local) -> tuple[Part, ...]:
    """The output of attention times the sigmoid of its gate (Qwen3-Next; NVIDIA/Megatron-LM@d98e8a64dd
    core/transformer/attention.py, ``attention_output_gate``): one kernel where a compiler joins it, else two."""
    if not lo.model.attention_output_gate:
        return ()
    tensor, apart = lo.act * query * lo.tokens, 0 if lo.compiled else 1
    forward = Stream(
        name="attn_gate", kind="elementwise", read=(2 + apart) * tensor, write=(1 + apart) * tensor, launches=1 + apart
    )
    backward = Stream(
        name="attn_gate.bwd",
        kind="elementwise",
        read=(3 + 2 * apart) * tensor,
        write=(2 + apart) * tensor,
        launches=1 + 2 * apart,
    )
    return (
        Part(
            name="attn_gate",
            forward=(forward,),
            backward_input=(backward,),
            saves=(
                Saved(name="attn_gate.a", storage="core_attn.out", bytes=tensor, input=True),
                Saved(name="attn_gate.b", storage="attn_gate", bytes=tensor, input=True),
            ),
            makes=(Saved(name="attn_gate.out", bytes=tensor),),
            tags=ATTN,
        ),
    )


def _sinks(lo: Local) -> tuple[Part, ...]:
    """A learned logit of every head."""
    weight = Weight(name="sinks", rows=lo.heads, split="rows")
    return (Part(name="sinks", weights=(weight,)),) if lo.model.attention_sinks else ()


def _split(query: int, key: int, lo: Local) -> Part:
    """Q, K, V as views of one tensor: Q of grouped heads must be copied; backward joins the three gradients."""
    if not lo.execution.fusion.qkv or lo.compiled:
        return Part(name="split_qkv")
    q, all_three = lo.act * query * lo.tokens, lo.act * (query + 2 * key) * lo.tokens
    grouped = lo.heads > lo.kv_heads
    forward = (Stream(name="split_qkv", kind="copy", read=q, write=q),) if grouped else ()
    backward = Stream(name="split_qkv.bwd", kind="copy", read=all_three, write=all_three)
    return Part(name="split_qkv", forward=forward, backward_input=(backward,), tags=ATTN)


def _qk_norm(query: int, key: int, lo: Local) -> tuple[Part, ...]:
    if not lo.model.qk_layernorm:
        return ()
    tensor = lo.act * (query + key) * lo.tokens
    return (
        Part(
            name="qk_norm",
            forward=(Stream(name="qk_norm", kind="norm", read=tensor, write=tensor, launches=2),),
            backward_input=(Stream(name="qk_norm.bwd", kind="norm", read=2 * tensor, write=tensor, launches=4),),
            weights=(*vectors("q_norm", lo.model.kv_channels, lo), *vectors("k_norm", lo.model.kv_channels, lo)),
            tags=ATTN,
        ),
    )


def _rope(query: int, key: int, lo: Local) -> tuple[Part, ...]:
    if not uses_rotary(lo):
        return ()
    forward, backward = rotary("rope", (query + key) * lo.tokens, lo)
    return (Part(name="rope", forward=forward, backward_input=backward, tags=ATTN | {"qkv_proj"}),)


def rotary(name: str, elements: int, lo: Local) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """(forward, backward) of the rotary embedding of queries and keys, ``elements`` in both together."""
    # Transformer Engine's kernel has no magnitude scale: Megatron falls back to the unfused form
    # (NVIDIA/Megatron-LM core/models/common/embeddings/rope_utils.py, ``mscale != 1``)
    fused = bool(lo.recipe.apply_rope_fusion) and not lo.model.rotary_magnitude_scaled
    each = lo.act * elements
    if lo.compiled or fused:
        one = Stream(name=name, kind="rope", read=each, write=each, launches=1 if lo.compiled else 2)
        return (one,), (replace(one, name=f"{name}.bwd"),)
    whole, strided = _UNFUSED_ROPE_BYTES / 4 * each, _STRIDED_ROPE_BYTES / 4 * each
    rest, launches = whole - strided, _UNFUSED_ROPE_LAUNCHES // 2
    ops = (
        Stream(name=name, kind="elementwise", read=rest, write=rest, launches=launches),
        Stream(name=f"{name}.strided", kind="strided", read=strided, write=strided, launches=launches),
    )
    return ops, tuple(replace(op, name=f"{op.name}.bwd") for op in ops)
