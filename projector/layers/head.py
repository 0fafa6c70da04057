"""What follows the last layer: final norm, output layer, loss."""

from __future__ import annotations

from dataclasses import replace

from projector.layers import altup, attention_residual, hyper
from projector.layers.cross_entropy import cross_entropy, projection_backward
from projector.layers.embedding import WORD_EMBEDDINGS
from projector.layers.linear import Linear, linear
from projector.layers.local import Local
from projector.layers.mlp import activation
from projector.layers.norms import norm
from projector.operators.part import Part
from projector.operators.saved import Saved
from projector.operators.types import Gemm, HostWork
from projector.operators.weights import Weight, stored_at

HEAD = frozenset({"head"})


def output(lo: Local) -> tuple[Part, ...]:
    """Final norm, output GEMM (never quantised) and cross-entropy; the norm alone without a vocabulary."""
    before = _transform(lo)
    last = norm("final_norm", lo.hidden, lo.shard_tokens, lo, branch=False, tags=HEAD, **_reads(before))
    if not lo.vocab:
        return last, *_check(lo)
    spec = Linear(
        "output",
        (lo.vocab,),
        lo.hidden,
        lo.tokens,
        "column",
        plain=True,
        bias=lo.model.masked_lm_head,
        target="output_layer",
        reads="final_norm.out",
    )
    product = linear(spec, lo, HEAD)
    tied = not lo.model.untie_embeddings_and_output_weights
    storage = WORD_EMBEDDINGS if tied else "output_layer"
    return (
        *hyper.leaving("final_norm.hc", lo),
        *altup.leaving(lo),
        *_mixture(lo),
        *_next_sentence(lo),
        *before,
        last,
        replace(
            product,
            weights=(*stored_at(product.weights[:1], storage, tied and lo.recipe.pp == 1), *product.weights[1:]),
            backward_transient=projection_backward(lo),
        ),
        cross_entropy(lo),
        *_check(lo),
    )


def _transform(lo: Local) -> tuple[Part, ...]:
    """The linear and the activation before the norm of BERT's head, whole on every tensor-parallel rank and run on its
    shard of the sequence (NVIDIA/Megatron-LM@d98e8a64dd megatron/core/models/bert/bert_lm_head.py)."""
    if not lo.model.masked_lm_head:
        return ()
    dense = Linear("lm_dense", (lo.hidden,), lo.hidden, lo.shard_tokens, bias=True, reads="lm_dense.in")
    kept = replace(lo, linear_dtype=lo.dtype, scaling="", cast_recipe="", gathered=lo.act)
    act = activation("lm_act", lo.hidden, lo.shard_tokens, lo, HEAD, reads="lm_dense.out")
    return linear(dense, kept, HEAD), act


def _reads(before: tuple[Part, ...]) -> dict[str, str]:
    return {"reads": "lm_act.out"} if before else {}


def _next_sentence(lo: Local) -> tuple[Part, ...]:
    """Returns a linear on the first token of every sequence, and one to two classes (pooler and ``binary_head``
    there)."""
    if not lo.model.bert_binary_head:
        return ()
    h = lo.hidden
    heads = (("pooler", h), ("binary_head", 2))
    return tuple(
        Part(
            name,
            forward=(Gemm(name, lo.batch, n, h, dtype=lo.dtype),),
            backward_input=(Gemm(f"{name}.dgrad", lo.batch, h, n, dtype=lo.dtype, layout="NN"),),
            backward_weight=(Gemm(f"{name}.wgrad", n, h, lo.batch, dtype=lo.dtype, layout="NT"),),
            weights=(Weight(name, n, h), Weight(f"{name}.bias", n)),
            saves=(Saved(f"{name}.in", lo.act * lo.batch * h),),
            tags=HEAD,
        )
        for name, n in heads
    )


def _mixture(lo: Local) -> tuple[Part, ...]:
    """The head mixes all checkpoints of the residual, where layers do."""
    if not lo.model.attn_res_block_size:
        return ()
    candidates = lo.model.candidates(lo.model.num_layers)
    return (attention_residual.mixer("final_norm.mix", candidates, lo.shard_tokens, lo),)


def _check(lo: Local) -> tuple[Part, ...]:
    """The loss of every micro-batch read by the host to look for NaN (Megatron-LM pretrain_gpt.py, loss_func)."""
    if not lo.recipe.check_for_nan_in_loss_and_grad:
        return ()
    wait = HostWork("loss.nan_check", sync=True)
    return (Part("loss.nan_check", forward=(wait,), tags=HEAD),)
