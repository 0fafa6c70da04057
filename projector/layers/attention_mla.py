"""Multi-head latent attention in training: keys and values are expanded for every head, unless an indexer chooses keys.

NVIDIA/Megatron-LM@d98e8a64dd core/transformer/multi_latent_attention.py. The down-projections are duplicated over the
tensor-parallel group (each rank its shard of the sequence, the whole width); the gathers are of the latents only.
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers.attention_core import Heads, attention_calls, with_saved_tensors
from projector.layers.attention_gqa import ATTN, UP, fork, gated, projected, queries
from projector.layers.context_parallel import core_attention
from projector.layers.indexer import indexer
from projector.layers.linear import Linear, batched, linear
from projector.layers.local import LayerView
from projector.layers.norms import norm, residual, sandwich
from projector.operators.module import Module, function
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


def attention(kind: LayerKind, view: LayerView) -> tuple[Module, ...]:
    """Returns the attention half of a layer, from its input norm to the residual addition."""
    mla = view.model.mla
    assert mla is not None
    heads = Heads(view.heads, view.heads, mla.qk_head_dim + mla.qk_pos_emb_head_dim, mla.v_head_dim, window=kind.window)
    gate = view.heads * mla.v_head_dim if mla.mla_use_output_gate else 0
    makes = (("attn_gate.in", gate),)
    gating = Linear("attn_gate_proj", (gate,), view.hidden, view.tokens, "column", reads="input_norm.out", makes=makes)
    reads = "attn_gate.out" if gate else "core_attn.out"
    proj = projected(reads, view.heads * mla.v_head_dim, view, view.model.add_bias_linear)
    if view.model.indexer is not None:
        return _absorbed(queries(mla.q_lora_rank, heads.heads * heads.qk, view), _key_value(mla, view), proj, mla, view)
    return (
        norm("input_norm", view, tags=ATTN | {"attn_norm", "layernorm"}),
        fork(view),
        *queries(mla.q_lora_rank, heads.heads * heads.qk, view),
        *_key_value(mla, view),
        _rope(mla, view),
        *((linear(gating, view, ATTN),) if gate else ()),
        core_attention(heads, view, ATTN | {"core_attn", "context"}),
        *((gated(gate, view, "attn_gate.in", keeps=True),) if gate else ()),
        linear(proj, view, ATTN | {"attn_proj", "out_proj"}),
        *sandwich("post_attn_norm", view, ATTN, "proj.out"),
        residual("attn_residual", view, ATTN, "pre_mlp_norm.in"),
    )


def _key_value(mla: MLA, view: LayerView) -> tuple[Module, ...]:
    rank, rope = mla.kv_lora_rank, mla.qk_pos_emb_head_dim
    down = Linear(
        "kv_down", (rank + rope,), view.hidden, view.shard_tokens, target="linear_kv_down_proj", reads="input_norm.out"
    )
    up = Linear(
        "kv_up",
        (view.heads * (mla.qk_head_dim + mla.v_head_dim),),
        rank,
        view.tokens,
        "column",
        after_norm=True,
        target="linear_kv_up_proj",
        reads="kv_norm.out",
        makes=(("k", view.heads * (mla.qk_head_dim + rope)), ("v", view.heads * mla.v_head_dim)),
    )
    latent = view.act * (rank + rope) * view.shard_tokens
    return (
        linear(down, view, ATTN | {"qkv_linear"}),
        # the latent is a strided view: the norm saves a copy, a replay starts from the whole (TransformerEngine
        # pytorch/ops and module/layernorm_linear.py work on contiguous tensors)
        function(
            "kv_split",
            latent,
            (1, 1, 2),
            (1, 1, 1),
            "copy",
            makes=(Saved("kv_norm.in", view.act * rank * view.shard_tokens),),
            reads=(Saved("kv_down.out", latent, input=True),),
            tags=UP,
        ),
        _positional_key(rope, view),
        norm("kv_norm", view, rank, view.shard_tokens, branch=False, tags=UP),
        linear(up, view, UP | {"qkv_proj"}),
    )


def _positional_key(rope: int, view: LayerView) -> Module:
    """Gathers the positional part of the key, one head for all heads, over the shards; scatters its gradient."""
    if not view.sp:
        return Module("k_pe")
    nbytes = view.act * rope * view.tokens
    return Module(
        "k_pe",
        forward=(Collective("k_pe.ag", "all_gather", "tp", nbytes),),
        backward_input=(Collective("k_pe.rs", "reduce_scatter", "tp", nbytes),),
        tags=ATTN,
    )


def _rope(mla: MLA, view: LayerView) -> Module:
    """Rotates the positional parts and assembles keys and values for every head.

    Fused: queries rotated in place (4·n·dr bytes a token), keys and values written contiguous. Unfused: the halves are
    split, rotated, expanded and concatenated: 8·n·(dn+dr) bytes a token more.
    """
    nope, rope, v = mla.qk_head_dim, mla.qk_pos_emb_head_dim, mla.v_head_dim
    per_token = view.act * view.heads
    read = per_token * (rope + nope + v) * view.tokens
    write = per_token * (rope + nope + rope + v) * view.tokens
    launches = _FUSED_LAUNCHES
    if not (view.recipe.apply_rope_fusion or view.compiled):
        more = 2 * per_token * (nope + rope) * view.tokens
        read, write, launches = read + more, write + more, _UNFUSED_LAUNCHES
    forward: Operator = Stream("rope", "rope", read, write, launches=launches)
    backward: Operator = Stream("rope.bwd", "rope", write, read, launches=launches)
    return Module("rope", forward=(forward,), backward_input=(backward,), tags=UP | {"qkv_proj"})


def _absorbed(
    query: tuple[Module, ...], latent: tuple[Module, ...], proj: Linear, mla: MLA, view: LayerView
) -> tuple[Module, ...]:
    """Attends to keys that an indexer chooses (DeepSeek-V3.2, arXiv:2512.02556). ``query``, ``latent``: modules of
    latent attention, the last of ``latent`` its up-projection.

    Every query has keys of its own, common to its heads, so that keys and values are the latent itself: the
    up-projection is absorbed into queries and output, half of it into each. The indexer is replicated over the
    tensor-parallel group and sees every token. Context parallelism gathers the latent keys and those of the indexer
    (NVIDIA/Megatron-LM@d98e8a64dd megatron/core/transformer/experimental_attention_variant/dsa.py).
    """
    sizes = view.model.indexer
    assert sizes is not None
    rank, rope, n = mla.kv_lora_rank, mla.qk_pos_emb_head_dim, view.heads
    heads = Heads(n, 1, rank + rope, rank, keys=sizes.keys(view.recipe.seq_length))
    seq = view.recipe.seq_length
    forward, backward = attention_calls("core_attn", heads, view, seq_q=-(-seq // view.recipe.cp), seq_k=seq)
    gather, scatter = _gathered_keys(rank + rope + sizes.index_head_dim, rank + rope, view)
    core = with_saved_tensors(
        Module("core_attn", forward=(*gather, forward), backward_input=(backward, *scatter), tags=ATTN | {"core_attn"}),
        heads,
        view,
    )
    return (
        norm("input_norm", view, tags=ATTN | {"attn_norm", "layernorm"}),
        *query,
        *latent[:-1],
        *indexer(sizes, 1, mla.q_lora_rank or view.hidden, view),
        batched("q_absorb", n, mla.qk_head_dim, rank, "q_up.out", view, ATTN | {"mla_up_proj"}),
        _rotated_and_joined(mla, view),
        replace(core, saves=tuple(saved for saved in core.saves if saved.name != "v")),
        batched("o_absorb", n, rank, mla.v_head_dim, "core_attn.out", view, ATTN | {"mla_up_proj"}),
        linear(replace(proj, reads="o_absorb.out"), view, ATTN | {"attn_proj", "out_proj"}),
        residual("attn_residual", view, ATTN, "pre_mlp_norm.in"),
    )


def _gathered_keys(keys: int, latent: int, view: LayerView) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """Gathers the keys of the whole sequence on every rank, and scatters the gradients of the latent ones."""
    cp, row = view.recipe.cp, view.act * view.tokens * view.recipe.cp
    if cp == 1:
        return (), ()
    copy = Stream("cp.reorder", "copy", row * keys, row * keys, launches=2)
    gather = Collective("cp.ag", "all_gather", "cp", row * keys, launches=2)
    scatter = Collective("cp.grad_rs", "reduce_scatter", "cp", row * latent)
    again = replace(copy, name="cp.grad_reorder", read=row * latent, write=row * latent, launches=1)
    return (gather, copy), (again, scatter)


def _rotated_and_joined(mla: MLA, view: LayerView) -> Module:
    """Rotates the positional halves and joins them with the latents."""
    rank, rope = mla.kv_lora_rank, mla.qk_pos_emb_head_dim
    query, key = view.act * view.tokens * view.heads * (rank + rope), view.act * view.tokens * (rank + rope)
    outputs = (
        Saved("q", query),
        Saved("k", key),
        Saved("q_up.out", view.act * view.tokens * view.heads * mla.qk_head_dim),
    )
    return function("rope", query + key, (1, 1, 4), (1, 1, 4), "rope", makes=outputs, tags=ATTN)
