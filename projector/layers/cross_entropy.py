"""Cross-entropy: passes over the [tokens, vocab/tp] logits and the sums between ranks, or over gathered ones.

Bytes and launches per logit counted from NVIDIA/Megatron-LM@d98e8a64dd core/tensor_parallel/cross_entropy.py,
core/fusions/fused_cross_entropy.py and Transformer Engine's Triton kernel (pytorch/cross_entropy.py).
"""

from __future__ import annotations

from math import log2
from typing import NamedTuple

from projector.errors import Unsupported
from projector.layers.local import LayerView
from projector.operators.module import Module
from projector.operators.saved import Saved, Transient
from projector.operators.types import Collective, Cost, Gemm, Operator, Stream, stream
from projector.parameter import parameter
from projector.size import ceil, most, real, whole


class _Passes(NamedTuple):
    """Bytes read and written per logit and launches, forward and backward; number of all-reduces of one fp32 per token."""

    forward: Cost
    backward: Cost
    reductions: int


_VARIANTS = parameter(
    {
        # cast to fp32, max, subtract, exp, sum, divide, each its own pass; backward multiplies and casts down
        "unfused": _Passes((22.0, 16.0, 8), (8.0, 6.0, 3), 3),
        # bf16 logits to an fp32 log-softmax kernel (torch): cast, log-softmax; backward, cast down
        "fp32": _Passes((6.0, 8.0, 3), (12.0, 6.0, 3), 3),
        # torch's log-softmax in the logits' own type; backward: zeros for the labels' gradient, its log-softmax
        "bf16": _Passes((2.0, 2.0, 2), (4.0, 4.0, 3), 3),
        # a compiler joins cast, exponentials and sums around one sweep for the largest logit and one for the sum, and the
        # gradient's around one (PyTorch 2, ASPLOS 2024, section 4: TorchInductor fuses pointwise and reductions)
        "compiled": _Passes((4.0, 0.0, 2), (2.0, 2.0, 1), 3),
        "native": _Passes((13.0, 11.0, 4), (4.0, 2.0, 1), 2),
        # online softmax that leaves the gradient in place; backward scales it by the incoming gradient
        "te": _Passes((4.0, 2.0, 2), (2.0, 2.0, 2), 1),
        # torch's loss in eight chunks: all logits stay in its graph, or each chunk's gradients are made at once
        "chunks": _Passes((6.0, 8.0, 24), (12.0, 6.0, 24), 3),
        "chunk_gradients": _Passes((6.0, 8.0, 24), (12.0, 6.0, 24), 3),
        # logits are never written: the output product is computed again in backward
        "linear": _Passes((0.0, 0.0, 2), (0.0, 0.0, 2), 1),
        # an fp32 copy of the logits, then as te on that copy
        "liger_cross_entropy": _Passes((10.0, 8.0, 3), (8.0, 6.0, 2), 0),
        # chunk by chunk, as te; the gradients are made at once, and scaled by the incoming one in backward
        "liger": _Passes((4.0, 2.0, 2), (0.0, 0.0, 2), 0),
    },
    unit="B/logit, launches",
    kind="derived",
    source="counted from NVIDIA/Megatron-LM@d98e8a64dd "
    "core/tensor_parallel/cross_entropy.py, core/fusions/fused_cross_entropy.py and Transformer Engine's Triton kernel "
    "(pytorch/cross_entropy.py)",
)

_METRIC = parameter(
    (4.0, 6.0, 3),
    unit="B/logit, launches",
    kind="derived",
    source="torch's cross entropy under autocast, as dispatched: log-softmax in 16 bits, copied to fp32, picked by label",
)


def cross_entropy(view: LayerView) -> Module:
    """Returns the loss on this rank's logits: the recipe's ``cross_entropy_fusion`` or, without one, the framework's
    ``loss``. Raises :class:`Unsupported` for a Liger loss of a vocabulary that is split over tp."""
    chosen = _chosen(view)
    if chosen.startswith("liger") and view.tp > 1:
        raise Unsupported(f"cross_entropy_fusion={chosen} with a vocabulary that is split over tp")
    passes = _passes(view)
    logits = real(view.tokens * _vocab(view))
    gather: tuple[Operator, ...] = ()
    reduce: tuple[Operator, ...] = ()
    if _split(view) > 1:
        nbytes = 4.0 * view.tokens * passes.reductions
        reduce = (Collective("loss.reduce", "all_reduce", "tp", nbytes, launches=passes.reductions),)
    elif view.tp > 1:
        gather = (Collective("loss.gather", "all_gather", "tp", _low(view)),)
    vector = 4.0 * view.tokens
    again = Gemm("output.again", view.tokens, view.vocab, view.hidden, dtype=view.dtype, out_bytes=view.act)
    saved, in_forward, in_backward = _held(view)
    # torch's fp32 loss in eager mode: the block of the 2-byte logits is free once they are cast (or kept by the model's
    # output): the labels' gradient takes the block of the fp32 copy, the log-softmax's needs a new one, and the next of two
    # bytes comes after both
    stranded = _low(view) if _law(view) == "fp32" else 0.0
    return Module(
        "loss",
        forward=(
            *gather,
            stream("loss", "loss", logits, passes.forward),
            *_accumulated_gradient(chosen, view),
            *reduce,
            Stream("loss.mask", "loss", 3 * vector, 2 * vector, launches=4),
            *[stream("loss.metric", "loss", logits, _METRIC)] * view.execution.fusion.loss_metrics,
        ),
        backward_input=(*[again] * (chosen == "linear"), stream("loss.bwd", "loss", logits, passes.backward)),
        saves=(Saved("loss.logits", saved),),
        forward_transient=Transient("loss_forward", in_forward),
        backward_transient=Transient("loss_backward", in_backward, stranded=stranded),
        tags=frozenset({"head"}),
    )


def takes_output_weight(view: LayerView) -> bool:
    """Returns whether the loss multiplies by the output layer's weight itself, chunk by chunk, and keeps no copy of it."""
    return _chosen(view) in ("linear", "liger")


def _chosen(view: LayerView) -> str:
    fusion = "fp32" if view.recipe.cross_entropy_fusion == "compiled" else view.recipe.cross_entropy_fusion
    return fusion if fusion in _VARIANTS else view.execution.fusion.loss


def _passes(view: LayerView) -> _Passes:
    """Returns what the loss of ``view`` reads and writes; XLA's is that of its functions one by one."""
    chosen = _chosen(view)
    fused = chosen == "fp32" and _compiled(view) and not view.execution.runtime.whole_step
    return _VARIANTS.get("compiled" if fused else chosen, _VARIANTS["unfused"])


def _compiled(view: LayerView) -> bool:
    by_hand = view.recipe.cross_entropy_fusion == "compiled"
    return by_hand or view.execution.fusion.loss_compiled or view.execution.runtime.whole_step


def _split(view: LayerView) -> int:
    """Returns the ranks that share the vocabulary in the loss."""
    return 1 if view.execution.tensor_parallel.gathers_logits else view.tp


def _vocab(view: LayerView) -> int:
    """Returns the vocabulary of the logits of which this rank computes the loss."""
    return view.vocab if _split(view) > 1 else view.vocab * view.tp


def _low(view: LayerView) -> float:
    """Returns the bytes of the logits in the activations' type."""
    return view.act * view.tokens * _vocab(view)


def _vector_bytes(view: LayerView) -> float:
    """Returns the bytes of the loss of every token and of the statistics that ranks exchange, fp32."""
    return 4.0 * view.tokens + 12.0 * view.tokens * (1 + _split(view))


def _law(view: LayerView) -> str:
    """Returns the key of :data:`_BYTES` for the loss of ``view``, or its name."""
    chosen = _chosen(view)
    if chosen in ("fp32", "bf16", "chunks", "chunk_gradients") and _compiled(view):
        return f"{chosen} compiled"
    if chosen == "native" and view.recipe.jit_fusion and not view.execution.runtime.whole_step:
        return "native compiled"
    return "fp32 split" if chosen == "fp32" and _split(view) > 1 else chosen


# Bytes of a logit that are saved for the backward, that live beside those in the forward, and in the backward: multiples
# of an activation's, and further ones.
#
# * ``te``: the gradient overwrites the 2-byte logits in place (TransformerEngine pytorch/cross_entropy.py).
# * ``native``, ``unfused``: the fp32 softmax, in place of the fp32 copy (Megatron-LM core/tensor_parallel/
#   cross_entropy.py, core/fusions/fused_cross_entropy.py); beside it the gradient in 16 bits, and of ``calculate_gradients``
#   as ``jit_fuser`` (torch.compile) makes it a second fp32 tensor, since what the label's update writes is scaled before it
#   goes back to the softmax (run with torch 2.13: 10 bytes live).
# * ``fp32``: the log-softmax (aten ``_log_softmax_backward_data`` reads its output alone), of a vocabulary that is split
#   the fp32 copy, too, and two gradients in fp32, of the log-softmax and of its input, and a third where it is split (torch
#   distributed/tensor/parallel/loss.py); a compiled loss keeps the 2-byte logits.
# * ``bf16``: the log-softmax in the logits' type (NVIDIA-NeMo/Automodel components/loss/masked_ce.py, fp32_upcast false),
#   beside the logits, which the caller holds (KempnerInstitute/KempnerForge@5666d0d kempnerforge/training/loss.py and
#   scripts/train.py, Automodel recipes/llm/train_ft.py).
# * ``liger_cross_entropy``: the gradient overwrites the fp32 copy (linkedin/Liger-Kernel@ead96b61 ops/cross_entropy.py)
#   that transformers' loss/loss_utils.py, ForCausalLMLoss makes of the logits.
# * ``chunks``: as ``fp32`` of an eighth of the tokens at a time, and one backward through all (pytorch/torchtune@bd2a0fc7
#   torchtune/modules/loss/cross_entropy_loss.py, ``LinearCrossEntropyLoss``; before 2025-05 ``CEWithChunkedOutputLoss``).
# * ``chunk_gradients``: the same, with a backward for each chunk, while the logits of the one before are held
#   (pytorch/torchtitan@b5bcd76c6 torchtitan/components/loss.py, ``ChunkedLossWrapper``).
_BYTES = parameter(
    {
        "te": ((1, 0), (0, 0), (0, 0)),
        "native compiled": ((0, 4), (1, 0), (1, 4)),
        "unfused": ((0, 4), (1, 0), (1, 0)),
        "liger_cross_entropy": ((0, 4), (1, 0), (1, 0)),
        "fp32": ((0, 4), (1, 4), (0, 8)),
        "fp32 split": ((0, 8), (1, 0), (1, 8)),
        "fp32 compiled": ((1, 0), (0, 0), (1, 0)),
        "bf16": ((2, 0), (1, 0), (2, 0)),
        "bf16 compiled": ((2, 0), (1, 0), (1, 0)),
        "chunks": ((0, 4), (0, 4 / 8), (0, 8 / 8)),
        "chunks compiled": ((1, 0), (0, 0), (0, 0)),
        "chunk_gradients": ((0, 0), (1 / 8, 12 / 8), (0, 0)),
        "chunk_gradients compiled": ((0, 0), (2 / 8, 0), (0, 0)),
    },
    unit="(activations, B)/logit",
    kind="derived",
    source="counted from the code that is named above",
)


def _held(view: LayerView) -> tuple[float, float, float]:
    """Returns the bytes that the loss saves for its backward, and those beside them in the forward and in the backward.
    Where logits never exist as a whole, and are made again (``linear``), largest value and sum of every token are saved;
    where gradients are made in the forward, those of the output layer's input and, for ``liger``, weight, in its own type
    (linkedin/Liger-Kernel@ead96b61 ops/fused_linear_cross_entropy.py), beside the logits of a chunk, one of the weight and
    the sum of those in fp32."""
    chosen, gradients = _chosen(view), (view.act + 4.0) * _gradient(view)
    if chosen == "linear":
        return 8.0 * view.tokens, 0.0, 0.0
    if chosen == "liger":
        weight = most(view.act, view.cast_weight_bytes) * _gradient(view)
        return view.hidden_bytes + weight, view.act * _chunk_tokens(view) * view.vocab + gradients, 0.0
    law = _BYTES.get(_law(view), _BYTES["unfused"])
    saved, forward, backward = (low * _low(view) + own * view.tokens * _vocab(view) for low, own in law)
    if chosen == "chunk_gradients":  # the sum of the input's gradients is in fp32, too
        return view.hidden_bytes, forward + 4.0 * view.tokens * view.hidden + gradients, 0.0
    if _law(view) in ("te", "fp32 compiled"):
        forward = _vector_bytes(view)
    return saved, forward, _vector_bytes(view) if chosen == "te" else backward


def projection_backward(view: LayerView) -> Transient:
    """Returns the costliest moment of the output layer's backward: gradient of the logits, of its input and the target
    of its reduce-scatter; what the loss saved is gone."""
    nbytes = view.gathered_bytes + (view.hidden_bytes if view.sp else 0.0)
    chosen, freed = _chosen(view), _held(view)[0]
    if chosen in ("liger", "chunk_gradients"):  # made in the forward
        return Transient("head_backward", freed, freed=freed)
    if chosen != "linear":
        nbytes += _low(view) / (8 if chosen == "chunks" else 1) + (_vector_bytes(view) if chosen == "te" else 0.0)
    return Transient("head_backward", nbytes, freed=freed)


def _chunk_tokens(view: LayerView) -> int:
    """Returns the tokens, a power of two, whose logits take about as much as the hidden states of all."""
    return whole(2 ** ceil(log2(ceil(view.tokens / ceil(view.vocab / view.hidden)))))


def _gradient(view: LayerView) -> float:
    """Returns the elements of the output weight's gradient; 0 for a frozen weight."""
    return 0.0 if not view.trainable else real(view.vocab * view.hidden)


def _accumulated_gradient(how: str, view: LayerView) -> tuple[Operator, ...]:
    """Returns the casts and sums of the output weight's gradient, chunk by chunk, in fp32."""
    if how != "liger" or not _gradient(view):
        return ()
    chunks = ceil(view.tokens / _chunk_tokens(view))
    read, write = chunks * (2 * view.act + 4.0) * _gradient(view), chunks * (view.act + 4.0) * _gradient(view)
    return (Stream("loss.accumulate", "loss", read, write, launches=2 * chunks),)
