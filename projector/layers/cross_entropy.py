"""Vocabulary-parallel cross-entropy: passes over the [tokens, vocab/tp] logits and the sums between ranks.

Bytes and launches per logit counted from NVIDIA/Megatron-LM@d98e8a64dd core/tensor_parallel/cross_entropy.py,
core/fusions/fused_cross_entropy.py and Transformer Engine's Triton kernel (pytorch/cross_entropy.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from projector.layers.local import Local
from projector.layers.part import Part
from projector.layers.types import Collective, Gemm, Operator, Stream

__all__ = ["cross_entropy"]


@dataclass(frozen=True, slots=True)
class _Passes:
    """Bytes read and written per logit and launches, forward and backward; collectives of one fp32 per token."""

    forward: tuple[float, float, int]
    backward: tuple[float, float, int]
    reductions: int


_VARIANTS = {
    # cast to fp32, max, subtract, exp, sum, divide, each its own pass; backward multiplies and casts down
    "unfused": _Passes((22.0, 16.0, 8), (8.0, 6.0, 3), 3),
    # bf16 logits to an fp32 log-softmax kernel (torch): cast, log-softmax; backward, cast down
    "fp32": _Passes((6.0, 8.0, 3), (12.0, 6.0, 3), 3),
    "native": _Passes((13.0, 11.0, 4), (4.0, 2.0, 1), 2),
    # online softmax that leaves the gradient in place; backward scales it by the incoming gradient
    "te": _Passes((4.0, 2.0, 2), (2.0, 2.0, 2), 1),
    # logits are never written: the output product is computed again in backward
    "linear": _Passes((0.0, 0.0, 2), (0.0, 0.0, 2), 1),
}


def cross_entropy(lo: Local) -> Part:
    """The loss on this rank's logits: the recipe's ``cross_entropy_fusion`` or, if none, the framework's ``loss``."""
    how = lo.recipe.cross_entropy_fusion
    chosen = how if how in _VARIANTS else lo.execution.loss
    passes = _VARIANTS.get(chosen, _VARIANTS["unfused"])
    logits = float(lo.tokens * lo.vocab)
    reduce: tuple[Operator, ...] = ()
    if lo.tp > 1:
        nbytes = 4.0 * lo.tokens * passes.reductions
        reduce = (
            Collective(name="loss.reduce", kind="all_reduce", group="tp", bytes=nbytes, launches=passes.reductions),
        )
    return Part(
        name="loss",
        forward=(_stream("loss", passes.forward, logits), *reduce, _mask(lo)),
        backward_input=(*_again(chosen, lo), _stream("loss.bwd", passes.backward, logits)),
        tags=frozenset({"head"}),
    )


def _stream(name: str, cost: tuple[float, float, int], logits: float) -> Stream:
    read, write, launches = cost
    return Stream(name=name, kind="loss", read=read * logits, write=write * logits, launches=launches)


def _mask(lo: Local) -> Stream:
    """Loss mask, sum and the vectors of the logged loss."""
    vector = 4.0 * lo.tokens
    return Stream(name="loss.mask", kind="loss", read=3 * vector, write=2 * vector, launches=4)


def _again(how: str, lo: Local) -> tuple[Operator, ...]:
    if how != "linear":
        return ()
    return (Gemm(name="output.again", m=lo.tokens, n=lo.vocab, k=lo.hidden, dtype=lo.dtype, out_bytes=lo.act),)
