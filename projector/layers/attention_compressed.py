"""Compressed sparse attention of DeepSeek-V4: one shared key = value head, a window of raw tokens in every layer and, by the
layer's ratio, chosen blocks of compressed ones (4) or all of them (128).

Operators counted from transformers models/deepseek_v4/modeling_deepseek_v4.py and AMD-AGI/Primus@fd1eeabb
primus/backends/megatron/core/transformer/{deepseek_v4_attention,compressor,indexer}.py. Heads and output groups are split
over the tensor-parallel group; the shared head, compressors and the indexer are replicated.

Context parallelism as NVIDIA/Megatron-LM@02f13d85 megatron/core/transformer/experimental_attention_variant/csa_cp_utils.py
has it: a rank holds one part of the sequence, gets the hidden states before it that a window and a shared block need, makes
keys and entries of both, and gathers the entries of all. The last rank sees most, and all wait for it.
"""

from __future__ import annotations

from dataclasses import replace

from projector.errors import Unsupported
from projector.layers.attention_core import Heads, attend, remembering
from projector.layers.attention_gqa import ATTN, rotary
from projector.layers.indexer import indexer, target
from projector.layers.linear import Linear, batched, linear
from projector.layers.local import Local
from projector.layers.norms import norm, residual
from projector.operators.part import Part
from projector.operators.saved import Saved
from projector.operators.types import Collective, Stream
from projector.operators.weights import Weight
from projector.workload.layer_kinds import LayerKind
from projector.workload.sparse import OVERLAPPING, Compressed, CompressedAttention


def attention(kind: LayerKind, lo: Local) -> tuple[Part, ...]:
    """Returns the attention half of a layer, from its input norm to the residual addition. Raises :class:`Unsupported`
    where a rank has fewer tokens than the next one needs."""
    sizes, mixer = lo.model.compressed, kind.mixer
    assert sizes is not None
    assert isinstance(mixer, CompressedAttention)
    d, ratio, cp = lo.model.kv_channels, mixer.ratio, lo.recipe.cp
    beside = _beside(sizes, ratio, lo)
    if beside > lo.tokens:
        raise Unsupported(f"compressed attention on {cp} ranks: each has fewer than {sizes.boundary(ratio)} tokens")
    seen = 1 - 1 / (2 * cp)
    return (
        norm("input_norm", lo.hidden, lo.shard_tokens, lo, tags=ATTN | {"attn_norm"}),
        *_query(sizes, d, lo),
        *_boundary(beside, lo),
        *_shared_head(d, replace(lo, tokens=lo.tokens + beside)),
        *(compressor("compressor", ratio, d, lo) if ratio else ()),
        *(indexer(sizes.indexer, ratio, sizes.q_lora_rank, lo, compressor, seen) if ratio == sizes.chosen else ()),
        *_gathered(sizes, ratio, d, lo),
        _keys(sizes, ratio, d, lo),
        _core(sizes, ratio, d, lo),
        *(target(sizes.indexer, _heads(sizes, ratio, d, lo), lo) if ratio == sizes.chosen else ()),
        _turned("unrope", lo.heads * sizes.qk_pos_emb_head_dim, lo.heads * d, lo),
        *_output(sizes, d, lo),
        residual("attn_residual", lo, ATTN, "pre_mlp_norm.in"),
    )


def _boundary(rows: int, lo: Local) -> tuple[Part, ...]:
    """Hidden states before a rank's own from the rank that has them, and their gradients back."""
    if not rows:
        return ()
    nbytes, tensor = lo.act * rows * lo.hidden, lo.act * (lo.tokens + rows) * lo.hidden
    send = Collective("cp.boundary", "send_recv", "cp", nbytes)
    join = Stream("cp.boundary.cat", "copy", tensor, tensor)
    back = Stream("cp.boundary.add", "elementwise", 2 * nbytes, nbytes)
    return (
        Part(
            "cp.boundary",
            forward=(send, join),
            backward_input=(replace(send, name="cp.boundary.grad"), back),
            tags=ATTN,
        ),
    )


def _gathered(sizes: Compressed, ratio: int, d: int, lo: Local) -> tuple[Part, ...]:
    """Entries of all ranks, and of the indexer's keys where it chooses; their gradients back, of the latter if it learns."""
    if not ratio or lo.recipe.cp == 1:
        return ()
    row = lo.act * lo.batch * (lo.recipe.seq_length // ratio)
    more = sizes.index_head_dim if ratio == sizes.chosen else 0
    gather = Collective("cp.ag", "all_gather", "cp", row * (d + more), launches=1 + bool(more))
    learned = d + (more if sizes.trained else 0)
    scatter = Collective("cp.grad_rs", "reduce_scatter", "cp", row * learned)
    return (Part("cp.entries", forward=(gather,), backward_input=(scatter,), tags=ATTN),)


def _query(sizes: Compressed, d: int, lo: Local) -> tuple[Part, ...]:
    """Down, norm, up, a norm of each head without a weight, rotation of its last dimensions."""
    rank, width = sizes.q_lora_rank, lo.heads * d
    down = Linear("q_down", (rank,), lo.hidden, lo.shard_tokens, reads="input_norm.out")
    up = Linear(
        "q_up", (width,), rank, lo.tokens, "column", after_norm=True, reads="q_norm.out", makes=(("q_heads.in", width),)
    )
    tensor = lo.act * width * lo.tokens
    heads = Part(
        "q_heads",
        forward=(Stream("q_heads", "norm", tensor, tensor),),
        backward_input=(Stream("q_heads.bwd", "norm", 2 * tensor, tensor),),
        saves=(Saved("q_heads.in", tensor, input=True),),
        makes=(Saved("q", tensor),),
        tags=ATTN,
    )
    return (
        linear(down, lo, ATTN | {"qkv_linear"}),
        norm("q_norm", rank, lo.shard_tokens, lo, branch=False, reads="q_down.out", tags=ATTN),
        linear(up, lo, ATTN | {"qkv_proj"}),
        heads,
        _turned("rope", lo.heads * sizes.qk_pos_emb_head_dim, width, lo),
    )


def _turned(name: str, rotated: int, width: int, lo: Local) -> Part:
    """Rotation of ``rotated`` of ``width`` elements of a token; unfused the tensor is put together again."""
    forward, backward = rotary(name, rotated * lo.tokens, lo)
    if not (lo.recipe.apply_rope_fusion or lo.compiled):
        tensor = lo.act * width * lo.tokens
        joined = Stream(f"{name}.cat", "copy", tensor, tensor)
        forward, backward = (*forward, joined), (joined, *backward)
    return Part(name, forward=forward, backward_input=backward, tags=ATTN)


def _shared_head(d: int, lo: Local) -> tuple[Part, ...]:
    spec = Linear("kv", (d,), lo.hidden, lo.tokens, reads="input_norm.out")
    return (
        linear(spec, lo, ATTN | {"qkv_linear"}),
        norm("kv_norm", d, lo.tokens, lo, branch=False, reads="kv.out", tags=ATTN),
    )


def compressor(name: str, ratio: int, d: int, lo: Local) -> tuple[Part, ...]:
    """Pools every ``ratio`` tokens into one entry by a softmax over gates: two products, learned positions, a
    norm.

    Short blocks overlap: each product is twice as wide.
    """
    wide = d * (2 if ratio < OVERLAPPING else 1)
    spec = Linear(name, (2 * wide,), lo.hidden, lo.tokens, parts=(wide, wide), reads="input_norm.out")
    tensor, rows = lo.act * 2 * wide * lo.tokens, -(-lo.tokens // ratio)
    pool = Part(
        f"{name}.pool",
        forward=(Stream(f"{name}.pool", "softmax", tensor, lo.act * d * rows),),
        backward_input=(Stream(f"{name}.pool.bwd", "softmax", tensor + lo.act * d * rows, tensor),),
        weights=(Weight(f"{name}.positions", ratio, wide),),
        saves=(Saved(f"{name}.pool.in", tensor, storage=f"{name}.out", input=True),),
        makes=(Saved(f"{name}_norm.in", lo.act * d * rows),),
        tags=ATTN,
    )
    return (linear(spec, lo, ATTN), pool, norm(f"{name}_norm", d, rows, lo, branch=False, tags=ATTN))


def _keys(sizes: Compressed, ratio: int, d: int, lo: Local) -> Part:
    """Returns the raw and compressed keys rotated, in one tensor."""
    forward, backward = rotary("rope_k", sizes.qk_pos_emb_head_dim * (lo.tokens + _beside(sizes, ratio, lo)), lo)
    nbytes = _key_bytes(sizes, ratio, d, lo)
    joined = Stream("keys.cat", "copy", nbytes, nbytes)
    return Part(
        "keys",
        forward=(*forward, joined),
        backward_input=(replace(joined, name="keys.cat.bwd"), *backward),
        makes=(Saved("k", nbytes),),
        tags=ATTN,
    )


def _beside(sizes: Compressed, ratio: int, lo: Local) -> int:
    """Tokens of other ranks whose hidden states this one reads."""
    return lo.batch * sizes.boundary(ratio) if lo.recipe.cp > 1 else 0


def _key_bytes(sizes: Compressed, ratio: int, d: int, lo: Local) -> float:
    entries = lo.batch * lo.recipe.seq_length // ratio if ratio else 0
    return lo.act * d * (lo.tokens + _beside(sizes, ratio, lo) + entries)


def _heads(sizes: Compressed, ratio: int, d: int, lo: Local) -> Heads:
    return Heads(lo.heads, 1, d, d, keys=sizes.keys(ratio, lo.recipe.seq_length, lo.recipe.cp))


def _core(sizes: Compressed, ratio: int, d: int, lo: Local) -> Part:
    """Returns one softmax over window, entries and the learned sink."""
    seq = lo.recipe.seq_length
    heads = _heads(sizes, ratio, d, lo)
    forward, backward = attend("core_attn", heads, lo, seq_q=-(-seq // lo.recipe.cp), seq_k=seq)
    part = Part("core_attn", forward=(forward,), backward_input=(backward,), tags=ATTN | {"core_attn", "context"})
    part = remembering(part, heads, lo)
    one = Saved("k", _key_bytes(sizes, ratio, d, lo), input=True)  # keys and values are one tensor
    saves = tuple(one if each.name == "k" else each for each in part.saves if each.name != "v")
    return replace(part, saves=saves, weights=(Weight("sinks", lo.heads, split="rows"),))


def _output(sizes: Compressed, d: int, lo: Local) -> tuple[Part, ...]:
    """Groups of heads projected to a low rank each, then all of them to the hidden width."""
    groups = -(-sizes.o_groups // lo.tp)
    inputs, rank = lo.heads * d // groups, sizes.o_lora_rank
    second = Linear(
        "proj", (lo.hidden,), groups * rank, lo.tokens, "row", target="linear_proj", reads="proj_groups.out"
    )
    first = batched("proj_groups", groups, inputs, rank, "core_attn.out", lo, ATTN | {"out_proj"})
    return first, linear(second, lo, ATTN | {"attn_proj", "out_proj"})
