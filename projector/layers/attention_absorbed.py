"""Latent attention to keys that an indexer chooses (DeepSeek-V3.2, arXiv:2512.02556).

Every query has keys of its own, common to its heads, so that keys and values are the latent itself: the up-projection is
absorbed into queries and output (NVIDIA/Megatron-LM core/transformer/experimental_attention_variant). The indexer is
replicated over the tensor-parallel group and sees every token.
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers.attention_core import Heads, attend, remembering
from projector.layers.indexer import indexer
from projector.layers.linear import Linear, batched, linear
from projector.layers.local import Local
from projector.layers.norms import norm, residual
from projector.operators.part import Part
from projector.operators.saved import Saved
from projector.operators.types import Collective, Operator, Stream
from projector.workload.model import MLA

ATTN = frozenset({"attn"})


def attention(query: tuple[Part, ...], latent: tuple[Part, ...], proj: Linear, mla: MLA, lo: Local) -> tuple[Part, ...]:
    """``query``, ``latent``: parts of latent attention, the last of ``latent`` its up-projection, which stands here in two
    halves. Context parallelism gathers the latent keys and those of the indexer (NVIDIA/Megatron-LM@d98e8a64dd
    megatron/core/transformer/experimental_attention_variant/dsa.py)."""
    sizes = lo.model.indexer
    assert sizes is not None
    rank, rope, n = mla.kv_lora_rank, mla.qk_pos_emb_head_dim, lo.heads
    heads = Heads(n, 1, rank + rope, rank, keys=sizes.keys(lo.recipe.seq_length))
    seq = lo.recipe.seq_length
    forward, backward = attend("core_attn", heads, lo, seq_q=-(-seq // lo.recipe.cp), seq_k=seq)
    there, back = _gathered(rank + rope + sizes.index_head_dim, rank + rope, lo)
    core = remembering(
        Part("core_attn", forward=(*there, forward), backward_input=(backward, *back), tags=ATTN | {"core_attn"}),
        heads,
        lo,
    )
    return (
        norm("input_norm", lo.hidden, lo.shard_tokens, lo, tags=ATTN | {"attn_norm", "layernorm"}),
        *query,
        *latent[:-1],
        *indexer(sizes, 1, mla.q_lora_rank or lo.hidden, lo),
        batched("q_absorb", n, mla.qk_head_dim, rank, "q_up.out", lo, ATTN | {"mla_up_proj"}),
        _rope(mla, lo),
        replace(core, saves=tuple(each for each in core.saves if each.name != "v")),
        batched("o_absorb", n, rank, mla.v_head_dim, "core_attn.out", lo, ATTN | {"mla_up_proj"}),
        linear(replace(proj, reads="o_absorb.out"), lo, ATTN | {"attn_proj", "out_proj"}),
        residual("attn_residual", lo, ATTN, "pre_mlp_norm.in"),
    )


def _gathered(keys: int, latent: int, lo: Local) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """Keys of the whole sequence on every rank, and the gradients of the latent ones back to theirs."""
    cp, row = lo.recipe.cp, lo.act * lo.tokens * lo.recipe.cp
    if cp == 1:
        return (), ()
    copy = Stream("cp.reorder", "copy", row * keys, row * keys, launches=2)
    gather = Collective("cp.ag", "all_gather", "cp", row * keys, launches=2)
    scatter = Collective("cp.grad_rs", "reduce_scatter", "cp", row * latent)
    again = replace(copy, name="cp.grad_reorder", read=row * latent, write=row * latent, launches=1)
    return (gather, copy), (again, scatter)


def _rope(mla: MLA, lo: Local) -> Part:
    """Returns the positional halves rotated and joined with the latents."""
    rank, rope = mla.kv_lora_rank, mla.qk_pos_emb_head_dim
    query, key = lo.act * lo.tokens * lo.heads * (rank + rope), lo.act * lo.tokens * (rank + rope)
    op = Stream("rope", "rope", query + key, query + key, launches=4)
    made = (
        Saved("q", query),
        Saved("k", key),
        Saved("q_up.out", lo.act * lo.tokens * lo.heads * mla.qk_head_dim),
    )
    return Part("rope", forward=(op,), backward_input=(replace(op, name="rope.bwd"),), makes=made, tags=ATTN)
