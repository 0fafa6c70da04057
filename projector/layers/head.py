"""What follows the last layer: final norm, output layer, loss."""

from __future__ import annotations

from dataclasses import replace

from projector.layers import attention_residual, hyper
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
    """Final norm, output GEMM (never quantised) and cross-entropy; the norm alone without a vocabulary."""
    last = norm("final_norm", lo.hidden, lo.shard_tokens, lo, branch=False, tags=HEAD)
    if not lo.vocab:
        return last, *_check(lo)
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
        *hyper.leaving("final_norm.hc", lo),
        *_mixture(lo),
        last,
        replace(
            product,
            weights=stored_at(product.weights, storage, tied and lo.recipe.pp == 1),
            backward_transient=projection_backward(lo),
        ),
        cross_entropy(lo),
        *_check(lo),
    )


def _mixture(lo: Local) -> tuple[Part, ...]:
    """Of all checkpoints of the residual, where layers mix them."""
    if not lo.model.attn_res_block_size:
        return ()
    candidates = lo.model.candidates(lo.model.num_layers)
    return (attention_residual.mixer("final_norm.mix", candidates, lo.shard_tokens, lo),)


def _check(lo: Local) -> tuple[Part, ...]:
    """The loss of every micro-batch read by the host to look for NaN (Megatron-LM pretrain_gpt.py, loss_func)."""
    if not lo.recipe.check_for_nan_in_loss_and_grad:
        return ()
    wait = HostWork(name="loss.nan_check", sync=True)
    return (Part(name="loss.nan_check", forward=(wait,), tags=HEAD),)
