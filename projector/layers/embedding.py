"""The input embedding, vocabulary-parallel."""

from __future__ import annotations

from dataclasses import replace

from projector.layers import altup, hyper
from projector.layers.local import LayerView
from projector.layers.norms import norm
from projector.operators.module import Module
from projector.operators.saved import Transient
from projector.operators.types import Collective, Operator, Stream
from projector.operators.weights import Weight
from projector.parameter import parameter
from projector.size import real

WORD_EMBEDDINGS = "word_embeddings"
"""Storage of the vocabulary: one tensor on a rank that holds both ends of a tied model, or also a prediction depth."""

_MASK_LAUNCHES = parameter(
    5,
    unit="launches",
    kind="derived",
    source="ids outside this rank's share: compare twice, subtract, masked write; zero the masked rows",
)


def embed(view: LayerView) -> tuple[Module, ...]:
    """Returns the rows of ``tokens`` ids, summed over tensor parallelism, plus learned positions (alone without a
    vocabulary).

    Backward writes a dense gradient of the whole shard (zeros, then rows added), which a hook then adds to the gradient
    buffer like that of any weight outside the fused linears. Source: NVIDIA/Megatron-LM core/tensor_parallel/layers.py
    (VocabParallelEmbedding), core/distributed/distributed_data_parallel.py.
    """
    positions, added = _positions(view)
    if not view.vocab:
        part = Module("embedding", forward=added, weights=positions, tags=frozenset({"embedding"}))
        return (part,) if positions else ()
    tensor = view.act * view.hidden * view.tokens
    forward: list[Operator] = [
        Stream("embedding", "gather", tensor, tensor, launches=1 + (_MASK_LAUNCHES if view.tp > 1 else 0))
    ]
    backward: list[Operator] = []
    if view.tp > 1:
        kind = "reduce_scatter" if view.sp or view.summa else "all_reduce"
        forward.append(Collective("embedding.reduce", kind, "tp", tensor))
    if view.summa:  # a rank looks up its part of the width for the rows of its column
        turn = Collective("embedding.turn", "all_to_all", "tp2", view.hidden_bytes)
        forward.append(turn)
        backward.append(replace(turn, name="embedding.grad_turn"))
    if (view.sp or (view.summa and view.tp > 1)) and view.trainable:
        backward.append(Collective("embedding.grad_ag", "all_gather", "tp", tensor))
    table_weight = Weight(
        "embedding", view.vocab, _columns(view), role="embedding", split="rows", storage=WORD_EMBEDDINGS
    )
    if view.trainable:
        weight = real(view.vocab * _columns(view))
        rows = tensor / view.tp  # each id falls into one rank's share
        dense = Stream("embedding.bwd", "gather", tensor + rows, view.act * weight + rows, launches=2)
        buffer = view.execution.data_parallel.grad_bytes
        backward += (dense, *view.execution.fusion.added("embedding.grad_add", weight, view.act, buffer))
    table = Module(
        "embedding",
        forward=(*forward, *added),
        backward_input=tuple(backward),
        weights=(table_weight, *positions),
        backward_transient=_backward_transient(view),
        tags=frozenset({"embedding"}),
    )
    if not view.model.embedding_layernorm:
        return table, *hyper.entry(view), *altup.embeddings(view), *altup.entry(view)
    return table, norm("embedding_norm", view, branch=False, tags=frozenset({"embedding"}))


def _positions(view: LayerView) -> tuple[tuple[Weight, ...], tuple[Stream, ...]]:
    """Returns the tables of learned positions and of segments, and the kernels that add them."""
    length = view.model.max_position_embeddings or view.recipe.seq_length
    rows = {"position": length if view.model.position_embedding_type == "learned_absolute" else 0}
    rows |= {"tokentype": view.model.num_tokentypes}
    shard = view.act * view.hidden * view.shard_tokens
    weights = (
        Weight(f"{name}s", n, view.hidden, role="embedding", storage=f"{name}_embeddings")
        for name, n in rows.items()
        if n
    )
    added = (Stream(f"embedding.{name}", "elementwise", 2 * shard, shard, launches=2) for name, n in rows.items() if n)
    return tuple(weights), tuple(added)


def _columns(view: LayerView) -> int:
    """Returns the width of the table on a rank: SUMMA's grid divides it, too."""
    return -(-view.hidden // view.recipe.tp2)


def _backward_transient(view: LayerView) -> Transient | None:
    """Returns the dense gradient of the table in the activations' type, and the hidden gradient that makes it."""
    if not view.trainable:
        return None
    return Transient("embedding_backward", view.act * view.vocab * _columns(view) + view.hidden_bytes)
