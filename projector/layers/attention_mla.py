"""Multi-head latent attention in training: keys and values are expanded for every head, but where an indexer chooses keys.

NVIDIA/Megatron-LM@d98e8a64dd core/transformer/multi_latent_attention.py. The down-projections are duplicated over the
tensor-parallel group (each rank its shard of the sequence, the whole width); the gathers are of the latents only.
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers.attention_core import Heads, attend, remembering
from projector.layers.attention_gqa import ATTN, UP, fork, gated, queries
from projector.layers.context_parallel import core_attention
from projector.layers.indexer import indexer
from projector.layers.linear import Linear, batched, linear
from projector.layers.local import Local
from projector.layers.norms import norm, residual, sandwich
from projector.operators.part import Part
from projector.operators.saved import Saved
from projector.operators.types import Collective, Operator, Stream
from projector.parameter import parameter
from projector.workload.model import MLA, LayerKind, Model

_FUSED_LAUNCHES, _UNFUSED_LAUNCHES = parameter(
    (2, 31),
    unit="launches",
    kind="derived",
    source="splits, rotary, expansion of the positional key, two concatenations",
)


def applies(model: Model) -> bool:
    return model.mla is not None


def attention(kind: LayerKind, lo: Local) -> tuple[Part, ...]:
    """Returns the attention half of a layer, from its input norm to the residual addition."""
    mla = lo.model.mla
    assert mla is not None
    heads = Heads(lo.heads, lo.heads, mla.qk_head_dim + mla.qk_pos_emb_head_dim, mla.v_head_dim, window=kind.window)
    gate = lo.heads * mla.v_head_dim if mla.mla_use_output_gate else 0
    proj = Linear(
        "proj",
        (lo.hidden,),
        lo.heads * mla.v_head_dim,
        lo.tokens,
        "row",
        bias=lo.model.add_bias_linear,
        target="linear_proj",
        reads="attn_gate.out" if gate else "core_attn.out",
    )
    if lo.model.indexer is not None:
        return _absorbed(queries(mla.q_lora_rank, heads.heads * heads.qk, lo), _key_value(mla, lo), proj, mla, lo)
    return (
        norm("input_norm", lo.hidden, lo.shard_tokens, lo, tags=ATTN | {"attn_norm", "layernorm"}),
        fork(lo),
        *queries(mla.q_lora_rank, heads.heads * heads.qk, lo),
        *_key_value(mla, lo),
        _rope(mla, lo),
        *_gate_projection(mla, lo),
        core_attention(heads, lo, ATTN | {"core_attn", "context"}),
        *((gated(gate, lo, "attn_gate.in", keeps=True),) if gate else ()),
        linear(proj, lo, ATTN | {"attn_proj", "out_proj"}),
        *sandwich("post_attn_norm", lo, ATTN, "proj.out"),
        residual("attn_residual", lo, ATTN, "pre_mlp_norm.in"),
    )


def _gate_projection(mla: MLA, lo: Local) -> tuple[Part, ...]:
    if not mla.mla_use_output_gate:
        return ()
    width = lo.heads * mla.v_head_dim
    spec = Linear(
        "attn_gate_proj",
        (width,),
        lo.hidden,
        lo.tokens,
        "column",
        reads="input_norm.out",
        makes=(("attn_gate.in", width),),
    )
    return (linear(spec, lo, ATTN),)


def _key_value(mla: MLA, lo: Local) -> tuple[Part, ...]:
    rank, rope = mla.kv_lora_rank, mla.qk_pos_emb_head_dim
    down = Linear(
        "kv_down", (rank + rope,), lo.hidden, lo.shard_tokens, target="linear_kv_down_proj", reads="input_norm.out"
    )
    up = Linear(
        "kv_up",
        (lo.heads * (mla.qk_head_dim + mla.v_head_dim),),
        rank,
        lo.tokens,
        "column",
        after_norm=True,
        target="linear_kv_up_proj",
        reads="kv_norm.out",
        makes=(("k", lo.heads * (mla.qk_head_dim + rope)), ("v", lo.heads * mla.v_head_dim)),
    )
    latent = lo.act * (rank + rope) * lo.shard_tokens
    return (
        linear(down, lo, ATTN | {"qkv_linear"}),
        # the latent is a strided view: the norm saves a copy, a replay starts from the whole (TransformerEngine
        # pytorch/ops and module/layernorm_linear.py work on contiguous tensors)
        Part(
            "kv_split",
            forward=(Stream("kv_split", "copy", latent, latent, launches=2),),
            backward_input=(Stream("kv_split.bwd", "copy", latent, latent, launches=1),),
            makes=(Saved("kv_norm.in", lo.act * rank * lo.shard_tokens),),
            reads=(Saved("kv_down.out", latent, input=True),),
            tags=UP,
        ),
        _positional_key(rope, lo),
        norm("kv_norm", rank, lo.shard_tokens, lo, branch=False, tags=UP),
        linear(up, lo, UP | {"qkv_proj"}),
    )


def _positional_key(rope: int, lo: Local) -> Part:
    """The part of the key with position is one head for all: gathered over the shards, its gradient scattered."""
    if not lo.sp:
        return Part("k_pe")
    nbytes = lo.act * rope * lo.tokens
    return Part(
        "k_pe",
        forward=(Collective("k_pe.ag", "all_gather", "tp", nbytes),),
        backward_input=(Collective("k_pe.rs", "reduce_scatter", "tp", nbytes),),
        tags=ATTN,
    )


def _rope(mla: MLA, lo: Local) -> Part:
    """Rotation of the positional parts and the assembly of keys and values for every head.

    Fused: queries rotated in place (4·n·dr bytes a token), keys and values written contiguous. Unfused: the halves are
    split, rotated, expanded and concatenated: 8·n·(dn+dr) bytes a token more.
    """
    nope, rope, v = mla.qk_head_dim, mla.qk_pos_emb_head_dim, mla.v_head_dim
    per_token = lo.act * lo.heads
    read = per_token * (rope + nope + v) * lo.tokens
    write = per_token * (rope + nope + rope + v) * lo.tokens
    launches = _FUSED_LAUNCHES
    if not (lo.recipe.apply_rope_fusion or lo.compiled):
        more = 2 * per_token * (nope + rope) * lo.tokens
        read, write, launches = read + more, write + more, _UNFUSED_LAUNCHES
    forward: Operator = Stream("rope", "rope", read, write, launches=launches)
    backward: Operator = Stream("rope.bwd", "rope", write, read, launches=launches)
    return Part("rope", forward=(forward,), backward_input=(backward,), tags=UP | {"qkv_proj"})


def _absorbed(query: tuple[Part, ...], latent: tuple[Part, ...], proj: Linear, mla: MLA, lo: Local) -> tuple[Part, ...]:
    """Attends to keys that an indexer chooses (DeepSeek-V3.2, arXiv:2512.02556). ``query``, ``latent``: parts of latent
    attention, the last of ``latent`` its up-projection.

    Every query has keys of its own, common to its heads, so that keys and values are the latent itself: the up-projection
    is absorbed into queries and output, half of it into each. The indexer is replicated over the tensor-parallel group and
    sees every token. Context parallelism gathers the latent keys and those of the indexer (NVIDIA/Megatron-LM@d98e8a64dd
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
        _joined(mla, lo),
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


def _joined(mla: MLA, lo: Local) -> Part:
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
