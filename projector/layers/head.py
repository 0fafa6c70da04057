"""What follows the last layer: final norm, output layer, loss."""

from __future__ import annotations

from dataclasses import replace

from projector.layers.cross_entropy import cross_entropy, projection_backward
from projector.layers.embedding import WORD_EMBEDDINGS
from projector.layers.linear import Linear, linear
from projector.layers.local import Local
from projector.layers.norms import norm
from projector.operators.part import Part
from projector.operators.types import HostWork
from projector.operators.weights import stored_at

__all__ = ["output"]

HEAD = frozenset({"head"})


def output(lo: Local) -> tuple[Part, ...]:
    """Final norm, output GEMM (never quantised) and cross-entropy."""
    spec = Linear(
        name="output",
        outputs=(lo.vocab,),
        inputs=lo.hidden,
        rows=lo.tokens,
        parallel="column",
        plain=True,
        target="output_layer",
        reads="final_norm.out",
    )
    product = linear(spec, lo, HEAD)
    tied = not lo.model.untie_embeddings_and_output_weights
    storage = WORD_EMBEDDINGS if tied else "output_layer"
    return (
        norm("final_norm", lo.hidden, lo.shard_tokens, lo, branch=False, tags=HEAD),
        replace(
            product,
            weights=stored_at(product.weights, storage, tied and lo.recipe.pp == 1),
            backward_transient=projection_backward(lo),
        ),
        cross_entropy(lo),
        *_check(lo),
    )


def _check(lo: Local) -> tuple[Part, ...]:
    """The loss of every micro-batch read by the host to look for NaN (Megatron-LM pretrain_gpt.py, loss_func)."""
    if not lo.recipe.check_for_nan_in_loss_and_grad:
        return ()
    wait = HostWork(name="loss.nan_check", sync=True)
    return (Part(name="loss.nan_check", forward=(wait,), tags=HEAD),)
