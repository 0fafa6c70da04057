"""Compressed sparse attention of DeepSeek-V4: one shared key = value head, a window of raw tokens in every layer and,
by the layer's ratio, chosen blocks of compressed tokens (4) or all of them (128).

Operators counted from transformers models/deepseek_v4/modeling_deepseek_v4.py and AMD-AGI/Primus@fd1eeabb
primus/backends/megatron/core/transformer/{deepseek_v4_attention,compressor,indexer}.py. Heads and output groups are
split over the tensor-parallel group; the shared head, compressors and the indexer are replicated.

Context parallelism (NVIDIA/Megatron-LM@02f13d85 megatron/core/transformer/experimental_attention_variant/csa_cp_utils.py): a
rank holds one part of the sequence, gets the hidden states before it that a window and a shared block need, makes keys and
entries of both, and gathers the entries of all ranks. The last rank sees most keys, and all wait for it.
"""

from __future__ import annotations

from dataclasses import replace

from projector.errors import Unsupported
from projector.layers.attention_core import Heads, attention_calls, with_saved_tensors
from projector.layers.attention_gqa import ATTN, projected, rotary
from projector.layers.indexer import indexer, target
from projector.layers.linear import Linear, batched, linear
from projector.layers.local import LayerView
from projector.layers.norms import norm, residual
from projector.operators.module import Module, function
from projector.operators.saved import Saved
from projector.operators.types import Collective, Stream
from projector.operators.weights import Weight
from projector.workload.sparse import OVERLAPPING, Compressed, CompressedAttention


def attention(mixer: CompressedAttention, view: LayerView) -> tuple[Module, ...]:
    """Returns the attention half of a layer, from its input norm to the residual addition. Raises :class:`Unsupported`
    where a rank has fewer tokens than the next one needs."""
    sizes = view.model.compressed
    assert sizes is not None
    d, ratio, cp = view.model.kv_channels, mixer.ratio, view.recipe.cp
    boundary = _boundary_tokens(sizes, ratio, view)
    if boundary > view.tokens:
        raise Unsupported(f"compressed attention on {cp} ranks: each has fewer than {sizes.boundary(ratio)} tokens")
    seen, whole = 1 - 1 / (2 * cp), replace(view, tokens=view.tokens + boundary)
    return (
        norm("input_norm", view, tags=ATTN | {"attn_norm"}),
        *_query(sizes, d, view),
        *_boundary(boundary, view),
        linear(Linear("kv", (d,), view.hidden, whole.tokens, reads="input_norm.out"), whole, ATTN | {"qkv_linear"}),
        norm("kv_norm", whole, d, whole.tokens, branch=False, reads="kv.out", tags=ATTN),
        *(compressor("compressor", ratio, d, view) if ratio else ()),
        *(indexer(sizes.indexer, ratio, sizes.q_lora_rank, view, compressor, seen) if ratio == sizes.chosen else ()),
        *_gathered_entries(sizes, ratio, d, view),
        _keys(sizes, ratio, d, view),
        _core(sizes, ratio, d, view),
        *(target(sizes.indexer, _heads(sizes, ratio, d, view), view) if ratio == sizes.chosen else ()),
        _rotation("unrope", view.heads * sizes.qk_pos_emb_head_dim, view.heads * d, view),
        *_output(sizes, d, view),
        residual("attn_residual", view, ATTN, "pre_mlp_norm.in"),
    )


def _boundary(rows: int, view: LayerView) -> tuple[Module, ...]:
    """Receives the hidden states before a rank's own from the rank that has them, and sends their gradients back."""
    if not rows:
        return ()
    nbytes, tensor = view.act * rows * view.hidden, view.act * (view.tokens + rows) * view.hidden
    send = Collective("cp.boundary", "send_recv", "cp", nbytes)
    join = Stream("cp.boundary.cat", "copy", tensor, tensor)
    back = Stream("cp.boundary.add", "elementwise", 2 * nbytes, nbytes)
    return (
        Module(
            "cp.boundary",
            forward=(send, join),
            backward_input=(replace(send, name="cp.boundary.grad"), back),
            tags=ATTN,
        ),
    )


def _gathered_entries(sizes: Compressed, ratio: int, d: int, view: LayerView) -> tuple[Module, ...]:
    """Gathers the entries of all ranks, and the indexer's keys where it chooses; scatters gradients of what learns."""
    if not ratio or view.recipe.cp == 1:
        return ()
    row = view.act * view.batch * (view.recipe.seq_length // ratio)
    more = sizes.index_head_dim if ratio == sizes.chosen else 0
    gather = Collective("cp.ag", "all_gather", "cp", row * (d + more), launches=1 + bool(more))
    learned = d + (more if sizes.trained else 0)
    scatter = Collective("cp.grad_rs", "reduce_scatter", "cp", row * learned)
    return (Module("cp.entries", forward=(gather,), backward_input=(scatter,), tags=ATTN),)


def _query(sizes: Compressed, d: int, view: LayerView) -> tuple[Module, ...]:
    """Returns down- and up-projection, a norm after each (the second without weight), rotation of the last dimensions."""
    rank, width = sizes.q_lora_rank, view.heads * d
    down = Linear("q_down", (rank,), view.hidden, view.shard_tokens, reads="input_norm.out")
    makes = (("q_heads.in", width),)
    up = Linear("q_up", (width,), rank, view.tokens, "column", after_norm=True, reads="q_norm.out", makes=makes)
    tensor = view.act * width * view.tokens
    heads = function(
        "q_heads",
        tensor,
        (1, 1, 1),
        (2, 1, 1),
        "norm",
        saves=(Saved("q_heads.in", tensor, input=True),),
        makes=(Saved("q", tensor),),
        tags=ATTN,
    )
    return (
        linear(down, view, ATTN | {"qkv_linear"}),
        norm("q_norm", view, rank, view.shard_tokens, branch=False, reads="q_down.out", tags=ATTN),
        linear(up, view, ATTN | {"qkv_proj"}),
        heads,
        _rotation("rope", view.heads * sizes.qk_pos_emb_head_dim, width, view),
    )


def _rotation(name: str, rotated: int, width: int, view: LayerView) -> Module:
    """Rotates ``rotated`` of ``width`` elements of a token; without fusion the tensor is concatenated again."""
    forward, backward = rotary(name, rotated * view.tokens, view)
    if not (view.recipe.apply_rope_fusion or view.compiled):
        tensor = view.act * width * view.tokens
        joined = Stream(f"{name}.cat", "copy", tensor, tensor)
        forward, backward = (*forward, joined), (joined, *backward)
    return Module(name, forward=forward, backward_input=backward, tags=ATTN)


def compressor(name: str, ratio: int, d: int, view: LayerView) -> tuple[Module, ...]:
    """Pools every ``ratio`` tokens into one entry by a softmax over gates: two products, learned positions, a norm.

    Short blocks overlap: each product is twice as wide.
    """
    wide = d * (2 if ratio < OVERLAPPING else 1)
    spec = Linear(name, (2 * wide,), view.hidden, view.tokens, parts=(wide, wide), reads="input_norm.out")
    tensor, rows = view.act * 2 * wide * view.tokens, -(-view.tokens // ratio)
    entries = view.act * d * rows
    pool = function(
        f"{name}.pool",
        1,
        (tensor, entries, 1),
        (tensor + entries, tensor, 1),
        "softmax",
        weights=(Weight(f"{name}.positions", ratio, wide),),
        saves=(Saved(f"{name}.pool.in", tensor, storage=f"{name}.out", input=True),),
        makes=(Saved(f"{name}_norm.in", entries),),
        tags=ATTN,
    )
    return (linear(spec, view, ATTN), pool, norm(f"{name}_norm", view, d, rows, branch=False, tags=ATTN))


def _keys(sizes: Compressed, ratio: int, d: int, view: LayerView) -> Module:
    """Returns the raw and compressed keys rotated, in one tensor."""
    forward, backward = rotary(
        "rope_k", sizes.qk_pos_emb_head_dim * (view.tokens + _boundary_tokens(sizes, ratio, view)), view
    )
    nbytes = _key_bytes(sizes, ratio, d, view)
    joined = Stream("keys.cat", "copy", nbytes, nbytes)
    return Module(
        "keys",
        forward=(*forward, joined),
        backward_input=(replace(joined, name="keys.cat.bwd"), *backward),
        makes=(Saved("k", nbytes),),
        tags=ATTN,
    )


def _boundary_tokens(sizes: Compressed, ratio: int, view: LayerView) -> int:
    """Returns the number of tokens of other ranks whose hidden states this rank reads."""
    return view.batch * sizes.boundary(ratio) if view.recipe.cp > 1 else 0


def _key_bytes(sizes: Compressed, ratio: int, d: int, view: LayerView) -> float:
    entries = view.batch * view.recipe.seq_length // ratio if ratio else 0
    return view.act * d * (view.tokens + _boundary_tokens(sizes, ratio, view) + entries)


def _heads(sizes: Compressed, ratio: int, d: int, view: LayerView) -> Heads:
    return Heads(view.heads, 1, d, d, keys=sizes.keys(ratio, view.recipe.seq_length, view.recipe.cp))


def _core(sizes: Compressed, ratio: int, d: int, view: LayerView) -> Module:
    """Returns one softmax over window, entries and the learned sink."""
    seq = view.recipe.seq_length
    heads = _heads(sizes, ratio, d, view)
    forward, backward = attention_calls("core_attn", heads, view, seq_q=-(-seq // view.recipe.cp), seq_k=seq)
    part = Module("core_attn", forward=(forward,), backward_input=(backward,), tags=ATTN | {"core_attn", "context"})
    part = with_saved_tensors(part, heads, view)
    keys_and_values = Saved("k", _key_bytes(sizes, ratio, d, view), input=True)  # keys and values are one tensor
    saves = tuple(keys_and_values if saved.name == "k" else saved for saved in part.saves if saved.name != "v")
    return replace(part, saves=saves, weights=(Weight("sinks", view.heads, split="rows"),))


def _output(sizes: Compressed, d: int, view: LayerView) -> tuple[Module, ...]:
    """Projects groups of heads to a low rank each, then all of them to the hidden width."""
    groups = -(-sizes.o_groups // view.tp)
    inputs, rank = view.heads * d // groups, sizes.o_lora_rank
    second = projected("proj_groups.out", groups * rank, view)
    first = batched("proj_groups", groups, inputs, rank, "core_attn.out", view, ATTN | {"out_proj"})
    return first, linear(second, view, ATTN | {"attn_proj", "out_proj"})
