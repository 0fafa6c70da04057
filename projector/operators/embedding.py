"""The input embedding, vocabulary-parallel."""

from __future__ import annotations

from projector.operators.local import Local
from projector.operators.part import Part
from projector.operators.types import Collective, Operator, Stream

__all__ = ["embed"]

_MASK_LAUNCHES = 5  # ids outside this rank's share: compare twice, subtract, masked write; zero the masked rows


def embed(lo: Local) -> tuple[Part, ...]:
    """Rows gathered for ``tokens`` ids, summed over the tensor-parallel group, plus learned positions.

    Backward writes a dense gradient of the whole shard (zeros, then rows added), which a hook then adds to the gradient
    buffer like that of any weight outside the fused linears. Source: NVIDIA/Megatron-LM
    core/tensor_parallel/layers.py (VocabParallelEmbedding), core/distributed/distributed_data_parallel.py.
    """
    tensor = lo.act * lo.hidden * lo.tokens
    forward: list[Operator] = [
        Stream(
            name="embedding",
            kind="gather",
            read=tensor,
            write=tensor,
            launches=1 + (_MASK_LAUNCHES if lo.tp > 1 else 0),
        )
    ]
    backward: list[Operator] = []
    if lo.tp > 1:
        kind = "reduce_scatter" if lo.sp else "all_reduce"
        forward.append(Collective(name="embedding.reduce", kind=kind, group="tp", bytes=tensor))
    if lo.sp and lo.trainable:
        backward.append(Collective(name="embedding.grad_ag", kind="all_gather", group="tp", bytes=tensor))
    positions = 0.0
    if lo.model.position_embedding_type == "learned_absolute":
        positions = float((lo.model.max_position_embeddings or lo.recipe.seq_length) * lo.hidden)
        shard = lo.act * lo.hidden * lo.shard_tokens
        forward.append(Stream(name="embedding.position", kind="elementwise", read=2 * shard, write=shard, launches=2))
    if lo.trainable:
        backward += _gradient(tensor, lo)
    return (
        Part(
            name="embedding",
            forward=tuple(forward),
            backward_input=tuple(backward),
            parameters=float(lo.vocab * lo.hidden) + positions,
            tags=frozenset({"embedding"}),
        ),
    )


def _gradient(tensor: float, lo: Local) -> tuple[Stream, ...]:
    weight = float(lo.vocab * lo.hidden)
    rows = tensor / lo.tp  # each id falls into one rank's share
    dense = Stream(name="embedding.bwd", kind="gather", read=tensor + rows, write=lo.act * weight + rows, launches=2)
    if lo.execution.wgrad_accumulation == "none":
        return (dense,)
    buffer = lo.execution.grad_bytes * weight
    add = Stream(name="embedding.grad_add", kind="elementwise", read=lo.act * weight + buffer, write=buffer)
    return (dense, add)
