"""The lightning indexer of sparse attention: cheap scores of every key, of which each query takes the best.

DeepSeek-V3.2 (deepseek-ai/DeepSeek-V3.2-Exp@3b99a53 inference/model.py): score = Σ_h w_h·ReLU(q_h·k), one key head.
Megatron-LM core/transformer/experimental_attention_variant: its projections are duplicated over the tensor-parallel
group and see the gathered sequence; its input is detached, so that its backward makes weight gradients alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from projector.layers.attention_core import Heads, attention_calls
from projector.layers.linear import Linear, linear
from projector.layers.local import LayerView
from projector.layers.norms import norm
from projector.operators.module import Module
from projector.operators.saved import Saved
from projector.operators.types import Collective, Gemm, Operator, Stream
from projector.parameter import parameter
from projector.size import least, most, real, whole
from projector.workload.sparse import Indexer

INDEXER = frozenset({"attn", "indexer"})
_TOPK_PASSES, _TOPK_LAUNCHES = parameter(
    (2.0, 4),
    unit="passes, launches",
    kind="assumed",
    source="radix selection reads the scores twice; mask, fill, gather",
)

Compressor = Callable[[str, int, int, LayerView], tuple[Module, ...]]


def indexer(
    sizes: Indexer, ratio: int, q_rank: int, view: LayerView, compressor: Compressor | None = None, seen: float = 0.5
) -> tuple[Module, ...]:
    """Returns the modules of the indexer. ``ratio``: tokens of a key (1: every token has one); ``q_rank``: width of the
    query latent that it reads; ``seen``: share of all keys that a query of this rank has before it.

    Without a loss of its own (``trained``) it runs forward only: selection has no gradient.
    """
    heads, d = sizes.index_n_heads, sizes.index_head_dim
    query = Linear("indexer.q", (heads * d,), q_rank, view.tokens, reads="q_norm.out")
    weights = Linear("indexer.weights", (heads,), view.hidden, view.tokens, reads="input_norm.out")
    if ratio > 1 and compressor is not None:
        keys = compressor("indexer.k", ratio, d, view)
    else:
        key = Linear("indexer.k", (d,), view.hidden, view.tokens, reads="input_norm.out")
        keys = linear(key, view, INDEXER), norm("indexer.k_norm", view, d, view.tokens, branch=False, tags=INDEXER)
    parts = (linear(query, view, INDEXER), *keys, linear(weights, view, INDEXER), _scores(sizes, ratio, seen, view))
    return tuple(_detached(part, sizes.trained) for part in parts)


def _scores(sizes: Indexer, ratio: int, seen: float, view: LayerView) -> Module:
    """Returns products with all keys so far, their weighted sum over heads, and the choice of the best. Half of the
    square is below the mask; sums over heads are written in fp32."""
    seq, heads, d = view.recipe.seq_length, sizes.index_n_heads, sizes.index_head_dim
    keys = most(1, seq // ratio)
    rows = -(-seq // view.recipe.cp)  # of each sequence; the rank's two parts have equally many keys on average
    pairs = real(view.batch) * rows * keys * seen
    product = Gemm(
        "indexer.scores",
        rows,
        most(1, whole(keys * seen)),
        heads * d,
        batch=view.batch,
        dtype=view.dtype,
        out_bytes=4.0,
    )
    select = Stream(
        "indexer.topk",
        "router",
        4.0 * _TOPK_PASSES * pairs,
        4.0 * view.tokens * least(sizes.index_topk, keys),
        launches=_TOPK_LAUNCHES,
    )
    # the fp32 scores of every head and pair, masked or not, written and read to sum them
    nbytes = 4.0 * heads * 2 * pairs
    summed = (Stream("indexer.heads", "elementwise", nbytes, nbytes, launches=3),)
    unfused = () if view.execution.fusion.indexer else summed
    backward: tuple[Operator, ...] = ()
    if sizes.trained:  # the divergence from attention's own distribution has gradients of queries and keys
        again = replace(product, name="indexer.scores.bwd", batch=2 * view.batch)
        heads_again = tuple(replace(op, name=f"{op.name}.bwd") for op in unfused)
        backward = (*heads_again, again, replace(select, name="indexer.loss.bwd", read=8.0 * pairs, write=4.0 * pairs))
    chosen = Saved("indexer.chosen", 4.0 * view.tokens * least(sizes.index_topk, keys))
    # scores that every head writes are kept for the gradient of the ReLU
    signs = (Saved("indexer.heads", 8.0 * heads * pairs),) if sizes.trained and unfused else ()
    return Module(
        "indexer.scores",
        forward=(product, *unfused, select),
        backward_input=backward,
        saves=(chosen, *signs),
        tags=INDEXER,
    )


def target(sizes: Indexer, heads: Heads, view: LayerView) -> tuple[Module, ...]:
    """Returns what a trained indexer learns: where attention's softmax looks, summed over heads, on the chosen keys.

    Scores of queries and keys once more, which no attention kernel hands out; then the divergence, both in fused
    kernels (AMD-AGI/Primus@2028bbcd primus/backends/megatron/core/transformer/indexer_distill_loss.py; its eager body
    writes the gathered keys and every head's scores). Nothing flows back from it to queries or keys.
    """
    if not sizes.trained:
        return ()
    seq = view.recipe.seq_length
    again, _ = attention_calls("indexer.target", replace(heads, v=0), view, seq_q=-(-seq // view.recipe.cp), seq_k=seq)
    nbytes = 4.0 * view.tokens * least(sizes.index_topk, seq)
    loss = Stream("indexer.loss", "softmax", 2 * nbytes, nbytes)
    shared = Collective("indexer.target.ar", "all_reduce", "tp", nbytes)  # heads of all ranks
    forward = (again, *((shared,) if view.tp > 1 else ()), loss)
    kept = Saved("indexer.target", nbytes)
    return (Module("indexer.target", forward=forward, saves=(kept,), tags=INDEXER),)


def _detached(part: Module, trained: bool) -> Module:
    """Removes gradients to the module's input; for an untrained indexer also those of its weights and what they need."""
    if trained:
        products = tuple(op for op in part.backward_input if not op.name.endswith(".dgrad"))
        return replace(part, backward_input=products)
    kept = tuple(saved for saved in part.saves if saved.name == "indexer.chosen")
    return replace(part, backward_input=(), backward_weight=(), saves=kept)
