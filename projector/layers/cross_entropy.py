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
        "xla": _Passes((6.0, 8.0, 3), (12.0, 6.0, 3), 3),
        "native": _Passes((13.0, 11.0, 4), (4.0, 2.0, 1), 2),
        # online softmax that leaves the gradient in place; backward scales it by the incoming gradient
        "te": _Passes((4.0, 2.0, 2), (2.0, 2.0, 2), 1),
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
    passes = _VARIANTS.get(chosen, _VARIANTS["unfused"])
    logits = real(view.tokens * _vocab(view))
    gather: tuple[Operator, ...] = ()
    reduce: tuple[Operator, ...] = ()
    if _split(view) > 1:
        nbytes = 4.0 * view.tokens * passes.reductions
        reduce = (Collective("loss.reduce", "all_reduce", "tp", nbytes, launches=passes.reductions),)
    elif view.tp > 1:
        gather = (Collective("loss.gather", "all_gather", "tp", _low(view)),)
    vector = 4.0 * view.tokens
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
        backward_input=(*_recomputed_logits(chosen, view), stream("loss.bwd", "loss", logits, passes.backward)),
        saves=(Saved("loss.logits", _saved_bytes(view)),),
        forward_transient=Transient("loss_forward", _forward_transient(view)),
        backward_transient=Transient("loss_backward", _backward_transient(view), stranded=_stranded_bytes(view)),
        tags=frozenset({"head"}),
    )


def takes_output_weight(view: LayerView) -> bool:
    """Returns whether the loss multiplies by the output layer's weight itself, chunk by chunk, and keeps no copy of it."""
    return _chosen(view) in ("linear", "liger")


def _chosen(view: LayerView) -> str:
    fusion, framework = view.recipe.cross_entropy_fusion, view.execution.fusion
    chosen = fusion if fusion in _VARIANTS else framework.loss
    return "compiled" if chosen == "fp32" and framework.loss_compiled else chosen


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


def _saved_bytes(view: LayerView) -> float:
    """Returns the bytes saved for the backward of the loss.

    * ``te``: the gradient overwrites the 2-byte logits in place (TransformerEngine pytorch/cross_entropy.py).
    * ``native``, ``unfused``: the fp32 softmax, in place of the fp32 copy (Megatron-LM core/tensor_parallel/
      cross_entropy.py, core/fusions/fused_cross_entropy.py).
    * ``fp32``: the log-softmax (aten ``_log_softmax_backward_data`` reads its output alone), of a vocabulary that is
      split the fp32 copy, too. ``compiled``, ``xla``: the 2-byte logits.
    * ``bf16``: the log-softmax in the logits' type (NVIDIA-NeMo/Automodel components/loss/masked_ce.py, fp32_upcast false),
      beside the logits, which the caller holds (KempnerInstitute/KempnerForge@5666d0d kempnerforge/training/loss.py and
      scripts/train.py, Automodel recipes/llm/train_ft.py).
    * ``linear``: logits never exist as a whole, and are made again: largest value and sum of every token.
    * ``liger_cross_entropy``: the gradient overwrites the fp32 copy (linkedin/Liger-Kernel@ead96b61 ops/cross_entropy.py)
      that transformers' loss/loss_utils.py, ForCausalLMLoss makes of the logits.
    * ``liger``: the gradients of the output layer's input and weight, made in the forward (linkedin/Liger-Kernel@ead96b61
      ops/fused_linear_cross_entropy.py).
    """
    chosen = _chosen(view)
    if chosen == "linear":
        return 8.0 * view.tokens
    if chosen == "liger":
        return view.hidden_bytes + most(view.act, view.cast_weight_bytes) * _gradient(view)  # in the weight's own type
    if chosen in ("te", "compiled", "xla"):
        return _low(view)
    if chosen == "bf16":
        return 2.0 * _low(view)
    return (8.0 if chosen == "fp32" and _split(view) > 1 else 4.0) * view.tokens * _vocab(view)


def _forward_transient(view: LayerView) -> float:
    """Returns the bytes beside the saved ones in the forward: the 2-byte logits of an fp32 loss and their copy; vectors
    where the logits themselves are saved."""
    chosen = _chosen(view)
    if chosen == "linear":
        return 0.0
    if chosen == "liger":  # logits of a chunk, and the product that is added to the weight's gradient, once in fp32
        return view.act * _chunk_tokens(view) * view.vocab + (view.act + 4.0) * _gradient(view)
    if chosen in ("te", "compiled", "xla"):
        return _vector_bytes(view)
    return _low(view) + (4.0 * view.tokens * _vocab(view) if chosen == "fp32" and _split(view) == 1 else 0.0)


def _backward_transient(view: LayerView) -> float:
    """Returns the bytes in the backward: the 2-byte gradient; torch's loss makes two in fp32, of the log-softmax and of
    its input, and a third for a vocabulary that is split (torch distributed/tensor/parallel/loss.py)."""
    chosen = _chosen(view)
    if chosen in ("linear", "liger", "te"):
        return _vector_bytes(view) if chosen == "te" else 0.0
    if chosen in ("native", "unfused", "compiled", "xla", "bf16", "liger_cross_entropy"):
        return (2.0 if chosen == "bf16" else 1.0) * _low(view)
    return 8.0 * view.tokens * _vocab(view) + (0.0 if _split(view) == 1 else _low(view))


def _stranded_bytes(view: LayerView) -> float:
    """Returns the block of the 2-byte logits, free once they are cast (or kept by the model's output): the labels' gradient
    takes the block of the fp32 copy, the log-softmax's needs a new one, and the next of two bytes comes after both."""
    return _low(view) if _chosen(view) == "fp32" and _split(view) == 1 else 0.0


def projection_backward(view: LayerView) -> Transient:
    """Returns the costliest moment of the output layer's backward: gradient of the logits, of its input and the target
    of its reduce-scatter; what the loss saved is gone."""
    nbytes = view.gathered_bytes + (view.hidden_bytes if view.sp else 0.0)
    chosen = _chosen(view)
    if chosen == "liger":  # made in the forward
        return Transient("head_backward", _saved_bytes(view), freed=_saved_bytes(view))
    if chosen != "linear":
        nbytes += _low(view) + (_vector_bytes(view) if chosen == "te" else 0.0)
    return Transient("head_backward", nbytes, freed=_saved_bytes(view))


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


def _recomputed_logits(how: str, view: LayerView) -> tuple[Operator, ...]:
    if how != "linear":
        return ()
    return (Gemm("output.again", view.tokens, view.vocab, view.hidden, dtype=view.dtype, out_bytes=view.act),)
