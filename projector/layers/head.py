"""The modules after the last layer: final norm, output layer, loss."""

from __future__ import annotations

from dataclasses import replace

from projector.layers import altup, attention_residual, hyper
from projector.layers.cross_entropy import cross_entropy, projection_backward
from projector.layers.embedding import WORD_EMBEDDINGS
from projector.layers.linear import Linear, linear
from projector.layers.local import LayerView
from projector.layers.mlp import activation
from projector.layers.norms import norm
from projector.operators.module import Module
from projector.operators.saved import Saved
from projector.operators.types import Gemm, HostWork
from projector.operators.weights import Weight, with_storage

HEAD = frozenset({"head"})


def output(view: LayerView) -> tuple[Module, ...]:
    """Returns final norm, output product (never quantised) and cross-entropy; without a vocabulary the norm alone."""
    before = _transform(view)
    last = norm("final_norm", view, branch=False, reads="lm_act.out" if before else "", tags=HEAD)
    if not view.vocab:
        return last, *_nan_check(view)
    spec = Linear(
        "output",
        (view.vocab,),
        view.hidden,
        view.tokens,
        "column",
        plain=True,
        bias=view.model.masked_lm_head,
        target="output_layer",
        reads="final_norm.out",
    )
    product = linear(spec, view, HEAD)
    tied = not view.model.untie_embeddings_and_output_weights
    storage = WORD_EMBEDDINGS if tied else "output_layer"
    return (
        *hyper.leaving("final_norm.hc", view),
        *altup.leaving(view),
        *_mixture(view),
        *_next_sentence(view),
        *before,
        last,
        replace(
            product,
            weights=(*with_storage(product.weights[:1], storage, tied and view.recipe.pp == 1), *product.weights[1:]),
            backward_transient=projection_backward(view),
        ),
        cross_entropy(view),
        *_nan_check(view),
    )


def _transform(view: LayerView) -> tuple[Module, ...]:
    """Returns the linear and the activation before the norm of BERT's head, whole on every tensor-parallel rank and run
    on its shard of the sequence (NVIDIA/Megatron-LM@d98e8a64dd megatron/core/models/bert/bert_lm_head.py)."""
    if not view.model.masked_lm_head:
        return ()
    dense = Linear("lm_dense", (view.hidden,), view.hidden, view.shard_tokens, bias=True, reads="lm_dense.in")
    unquantised = replace(view, linear_dtype=view.dtype, scaling="", cast_recipe="", gathered=view.act)
    act = activation("lm_act", view.hidden, view.shard_tokens, view, HEAD, reads="lm_dense.out")
    return linear(dense, unquantised, HEAD), act


def _next_sentence(view: LayerView) -> tuple[Module, ...]:
    """Returns a linear on the first token of every sequence, and one to two classes (BERT's pooler and binary head)."""
    if not view.model.bert_binary_head:
        return ()
    h = view.hidden
    heads = (("pooler", h), ("binary_head", 2))
    return tuple(
        Module(
            name,
            forward=(Gemm(name, view.batch, n, h, dtype=view.dtype),),
            backward_input=(Gemm(f"{name}.dgrad", view.batch, h, n, dtype=view.dtype, layout="NN"),),
            backward_weight=(Gemm(f"{name}.wgrad", n, h, view.batch, dtype=view.dtype, layout="NT"),),
            weights=(Weight(name, n, h), Weight(f"{name}.bias", n)),
            saves=(Saved(f"{name}.in", view.act * view.batch * h),),
            tags=HEAD,
        )
        for name, n in heads
    )


def _mixture(view: LayerView) -> tuple[Module, ...]:
    """Returns the head's mixture of all checkpoints of the residual, where layers have one."""
    if not view.model.attn_res_block_size:
        return ()
    candidates = view.model.candidates(view.model.num_layers)
    return (attention_residual.mixer("final_norm.mix", candidates, view.shard_tokens, view),)


def _nan_check(view: LayerView) -> tuple[Module, ...]:
    """Returns the host's read of every micro-batch's loss to look for NaN (Megatron-LM pretrain_gpt.py, loss_func)."""
    if not view.recipe.check_for_nan_in_loss_and_grad:
        return ()
    return (Module("loss.nan_check", forward=(HostWork("loss.nan_check", sync=True),), tags=HEAD),)
