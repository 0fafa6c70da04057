"""Embedding and head: final norm, logits and loss, whose tensors are the largest single ones of a rank."""

from __future__ import annotations

from dataclasses import dataclass

from projector.frameworks.types import Resolved
from projector.memory.sizes import sizes

__all__ = ["HeadMemory", "embedding_backward", "head_memory", "loss_kind"]


@dataclass(frozen=True, slots=True)
class HeadMemory:
    """Bytes of the head for one micro-batch.

    ``norm`` and ``loss`` are saved between its forward and backward (for every prediction depth). On top of them come
    ``forward`` at the end of the forward and ``loss_backward`` while the loss is differentiated; then one depth's
    ``released`` loss tensors give way to ``projection_backward`` of the output layer.
    """

    norm: float
    loss: float
    released: float
    forward: float
    loss_backward: float
    projection_backward: float


def loss_kind(resolved: Resolved) -> str:
    """``te``, ``native``, ``unfused``, ``fp32`` or ``linear``: the recipe's word, else what the framework does."""
    stated = resolved.workload.recipe.cross_entropy_fusion
    return stated if stated and stated != "none" else resolved.execution.loss


def head_memory(resolved: Resolved, predictions: int = 1) -> HeadMemory:
    """Bytes of final norm, output layer and cross-entropy with ``predictions`` sets of logits (1 + MTP depth).

    * ``te``: the gradient overwrites the 2-byte logits in place; fp32 loss and statistics beside it
      (TransformerEngine pytorch/cross_entropy.py).
    * ``native``, ``unfused``: fp32 softmax saved (in place of the fp32 copy), the 2-byte logits beside it in the
      forward and the 2-byte gradient beside it in the backward (Megatron-LM core/tensor_parallel/cross_entropy.py,
      core/fusions/fused_cross_entropy.py).
    * ``fp32``: 2-byte logits, fp32 copy, log-softmax and fp32 gradient; one more with a vocabulary that is
      split over TP (torch distributed/tensor/parallel/loss.py); a compiled loss keeps logits and gradient.
    * ``linear``: chunked, logits never exist as a whole; the input gradient is made in the forward.
    """
    size, model = sizes(resolved), resolved.workload.model
    x = size.hidden_bytes
    logits = float(size.tokens) * size.vocab
    statistics = 8.0 if model.normalization == "LayerNorm" else 4.0
    norm = 2 * x + statistics * size.shard
    kind = loss_kind(resolved)
    low = size.element * logits
    vectors = 4.0 * size.tokens + 12.0 * size.tokens * (1 + size.tp)
    # input gradient of the output layer, and the target of its reduce-scatter
    dgrad = size.gathered_bytes + (x if size.sequence_parallel else 0.0)
    if kind == "te":
        loss, forward, backward = low, vectors, vectors
    elif kind in ("native", "unfused"):
        loss, forward, backward = 4.0 * logits, low, low
    elif kind == "linear":
        loss, forward, backward = x, 0.0, 0.0
    elif resolved.execution.loss_compiled or resolved.execution.whole_step_compiled:
        loss, forward, backward = low, vectors, low
    else:
        loss, forward, backward = 8.0 * logits, low, (4.0 if size.tp == 1 else 8.0) * logits + low
    # the 2-byte gradient of the logits, and what the output layer makes of it
    projection = dgrad if kind == "linear" else low + dgrad + (vectors if kind == "te" else 0.0)
    return HeadMemory(predictions * norm, predictions * loss, loss, forward, backward, projection)


def embedding_backward(resolved: Resolved) -> float:
    """The dense gradient of the word embedding in the parameters' dtype, and the hidden gradient that makes it."""
    size = sizes(resolved)
    return size.element * size.vocab * size.hidden + size.hidden_bytes
