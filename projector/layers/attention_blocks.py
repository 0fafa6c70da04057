"""Attention to blocks of keys that queries choose by pooled keys: MoBA (arXiv:2502.13189), NSA (arXiv:2502.11089).

fla-org/flash-linear-attention@72c71149 fla/ops/nsa/{parallel,compression}.py, fla/layers/nsa.py: keys and values are pooled
block by block; NSA attends to the pooled ones, to the chosen blocks and to a window, each branch by a gate of every head.
MoBA attends to the chosen blocks alone; its choice has no gradient (MoonshotAI/MoBA moba/moba_efficient.py).

Context parallelism of NSA (mdy666/Scalable-Flash-Native-Sparse-Attention@3217927c flash_nsa/modules/megatron_level_nsa.py,
``CPNSAFunction``): keys and values of all ranks are gathered beside the window, again in backward, pooled by each rank, and
their gradients scattered in fp32; ranks get parts of the sequence with equal work.
"""

from __future__ import annotations

from dataclasses import replace

from projector.errors import Unsupported
from projector.layers import attention_gqa
from projector.layers.attention_core import Heads, attention_calls, with_saved_tensors
from projector.layers.attention_gqa import ATTN
from projector.layers.linear import Linear, linear
from projector.layers.local import LayerView
from projector.operators.module import Module
from projector.operators.saved import Saved
from projector.operators.types import Collective, Gemm, Operator, Stream
from projector.parameter import parameter
from projector.size import least, most
from projector.workload.layer_kinds import Attention
from projector.workload.model import LayerKind
from projector.workload.sparse import BlockAttention

_TOPK_PASSES, _TOPK_LAUNCHES = parameter(
    (2.0, 3),
    unit="passes, launches",
    kind="assumed",
    source="mask, selection and its indices, which read the scores twice",
)


def attention(sizes: BlockAttention, kind: LayerKind, view: LayerView) -> tuple[Module, ...]:
    """Returns a grouped-query layer of ``kind``, block attention its core. Raises :class:`Unsupported` for MoBA over cp."""
    if view.recipe.cp > 1 and not sizes.compressed:
        raise Unsupported(
            "attention to chosen blocks under context parallelism: no public code of MoBA divides its sequence"
        )
    parts = attention_gqa.attention(replace(kind, mixer=Attention()), view)
    at = [part.name for part in parts].index("core_attn")
    d = view.model.kv_channels
    heads = Heads(view.heads, view.kv_heads, d, d)
    gates: tuple[Module, ...] = ()
    if sizes.compressed:
        spec = Linear("branch_gates", (3 * view.heads,), view.hidden, view.tokens, "column", reads="input_norm.out")
        gates = (linear(spec, view, ATTN),)
    return (*parts[:at], *gates, _core(sizes, heads, view), *parts[at + 1 :])


def _core(sizes: BlockAttention, heads: Heads, view: LayerView) -> Module:
    """Returns pooled keys, scores of blocks, the choice, attention to the chosen; with ``compressed`` all three branches."""
    seq, block, act = view.recipe.seq_length, sizes.block_size, view.act
    entries, rows = most(1, seq // block), -(-seq // view.recipe.cp)
    kv, out = act * heads.kv_width * view.tokens * view.recipe.cp, act * heads.heads * heads.v * view.tokens
    pool = Stream("blocks.pool", "reduce", kv, kv / block)
    pooled, pooled_back = attention_calls(
        "blocks.pooled", replace(heads, keys=entries / 2), view, seq_q=rows, seq_k=entries
    )
    scores = Gemm(
        "blocks.scores",
        rows,
        most(1, entries // 2),
        heads.qk,
        batch=view.batch * heads.heads,
        dtype=view.dtype,
        out_bytes=4.0,
    )
    choosing = heads.kv_heads if sizes.compressed else heads.heads
    pairs = 4.0 * choosing * view.tokens * entries / 2
    chosen = 4.0 * choosing * view.tokens * least(sizes.block_counts, entries)
    choose = Stream("blocks.topk", "router", _TOPK_PASSES * pairs, chosen, launches=_TOPK_LAUNCHES)
    main, main_back = attention_calls("core_attn", replace(heads, keys=sizes.keys(seq)), view, seq_q=rows, seq_k=seq)
    forward: tuple[Operator, ...] = (pool, scores, choose, main)
    backward: tuple[Operator, ...] = (main_back,)
    part = Module("core_attn", tags=ATTN | {"core_attn", "context"})
    kept: tuple[Saved, ...] = (Saved("blocks.chosen", chosen),)
    if sizes.compressed:
        near, near_back = attention_calls(
            "blocks.window", replace(heads, window=sizes.window_size), view, seq_q=rows, seq_k=seq
        )
        merge = Stream("blocks.merge", "elementwise", 3 * out, out)
        spread = Stream("blocks.merge.bwd", "elementwise", 4 * out, 3 * out)
        pool_back = Stream("blocks.pool.bwd", "elementwise", kv + kv / block, kv)
        gather, gather_again, scatter = _gathered(kv, view)
        forward = (*gather, pool, pooled, scores, choose, main, near, merge)
        backward = (*gather_again, spread, near_back, main_back, pooled_back, pool_back, *scatter)
        statistics = 4.0 * heads.heads * view.tokens
        kept += (
            Saved("blocks.gates", 3 * act * heads.heads * view.tokens, storage="branch_gates.out", input=True),
            *(Saved(f"blocks.out{i}", out) for i in range(3)),
            *(Saved(f"blocks.lse{i}", statistics) for i in range(2)),
            Saved("blocks.pooled", kv / block),
        )
    core = with_saved_tensors(replace(part, forward=forward, backward_input=backward), heads, view)
    return replace(core, saves=(*core.saves, *kept))


def _gathered(kv: float, view: LayerView) -> tuple[tuple[Operator, ...], tuple[Operator, ...], tuple[Operator, ...]]:
    """Returns the gathers of ``kv`` bytes of all ranks' keys and values, forward and backward, and the fp32 scatter."""
    if view.recipe.cp == 1:
        return (), (), ()
    gather = Collective("cp.ag", "all_gather", "cp", kv, launches=2, hides_behind=("blocks.window",))
    gather_again = replace(gather, name="cp.grad_ag", hides_behind=("blocks.window.bwd",))
    scatter = Collective("cp.grad_rs", "reduce_scatter", "cp", 4.0 / view.act * kv, launches=2)
    return (gather,), (gather_again,), (scatter,)
