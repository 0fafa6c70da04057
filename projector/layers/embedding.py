"""The input embedding, vocabulary-parallel."""

from __future__ import annotations

from dataclasses import replace

from projector.layers import altup, hyper
from projector.layers.local import Local
from projector.layers.norms import norm
from projector.operators.part import Part
from projector.operators.saved import Transient
from projector.operators.types import Collective, Operator, Stream
from projector.operators.weights import Weight
from projector.parameter import parameter
from projector.size import real

WORD_EMBEDDINGS = "word_embeddings"
"""The tensor of the vocabulary: one on a rank that holds both ends of a tied model, or a prediction depth beside them."""

_MASK_LAUNCHES = parameter(
    5,
    unit="launches",
    kind="derived",
    source="ids outside this rank's share: compare twice, subtract, masked write; zero the masked rows",
)


def embed(lo: Local) -> tuple[Part, ...]:
    """Returns the rows gathered for ``tokens`` ids, summed over the tensor-parallel group, plus learned positions;
    these alone without a vocabulary.

    Backward writes a dense gradient of the whole shard (zeros, then rows added), which a hook then adds to the gradient
    buffer like that of any weight outside the fused linears. Source: NVIDIA/Megatron-LM
    core/tensor_parallel/layers.py (VocabParallelEmbedding), core/distributed/distributed_data_parallel.py.
    """
    positions, added = _positions(lo)
    if not lo.vocab:
        part = Part("embedding", forward=added, weights=positions, tags=frozenset({"embedding"}))
        return (part,) if positions else ()
    tensor = lo.act * lo.hidden * lo.tokens
    forward: list[Operator] = [
        Stream("embedding", "gather", tensor, tensor, launches=1 + (_MASK_LAUNCHES if lo.tp > 1 else 0))
    ]
    backward: list[Operator] = []
    if lo.tp > 1:
        kind = "reduce_scatter" if lo.sp or lo.summa else "all_reduce"
        forward.append(Collective("embedding.reduce", kind, "tp", tensor))
    if lo.summa:  # a rank looks up its part of the width for the rows of its column
        turn = Collective("embedding.turn", "all_to_all", "tp2", lo.hidden_bytes)
        forward.append(turn)
        backward.append(replace(turn, name="embedding.grad_turn"))
    if (lo.sp or (lo.summa and lo.tp > 1)) and lo.trainable:
        backward.append(Collective("embedding.grad_ag", "all_gather", "tp", tensor))
    table_weight = Weight("embedding", lo.vocab, _columns(lo), role="embedding", split="rows", storage=WORD_EMBEDDINGS)
    if lo.trainable:
        backward += _gradient(tensor, lo)
    table = Part(
        "embedding",
        forward=(*forward, *added),
        backward_input=tuple(backward),
        weights=(table_weight, *positions),
        backward_transient=_moment(lo),
        tags=frozenset({"embedding"}),
    )
    if not lo.model.embedding_layernorm:
        return table, *hyper.entry(lo), *altup.embeddings(lo), *altup.entry(lo)
    return table, norm("embedding_norm", lo.hidden, lo.shard_tokens, lo, branch=False, tags=frozenset({"embedding"}))


def _positions(lo: Local) -> tuple[tuple[Weight, ...], tuple[Stream, ...]]:
    """Learned positions, and those of segments, and their addition."""
    length = lo.model.max_position_embeddings or lo.recipe.seq_length
    rows = {"position": length if lo.model.position_embedding_type == "learned_absolute" else 0}
    rows |= {"tokentype": lo.model.num_tokentypes}
    shard = lo.act * lo.hidden * lo.shard_tokens
    weights = (
        Weight(f"{name}s", n, lo.hidden, role="embedding", storage=f"{name}_embeddings")
        for name, n in rows.items()
        if n
    )
    added = (Stream(f"embedding.{name}", "elementwise", 2 * shard, shard, launches=2) for name, n in rows.items() if n)
    return tuple(weights), tuple(added)


def _columns(lo: Local) -> int:
    """Width of the table on a rank: SUMMA's grid divides it, too."""
    return -(-lo.hidden // lo.recipe.tp2)


def _moment(lo: Local) -> Transient | None:
    """The dense gradient of the table in the activations' type, and the hidden gradient that makes it."""
    if not lo.trainable:
        return None
    return Transient("embedding_backward", lo.act * lo.vocab * _columns(lo) + lo.hidden_bytes)


def _gradient(tensor: float, lo: Local) -> tuple[Stream, ...]:
    weight = real(lo.vocab * _columns(lo))
    rows = tensor / lo.tp  # each id falls into one rank's share
    dense = Stream("embedding.bwd", "gather", tensor + rows, lo.act * weight + rows, launches=2)
    buffer = lo.execution.data_parallel.grad_bytes
    return (dense, *lo.execution.fusion.added("embedding.grad_add", weight, lo.act, buffer))
