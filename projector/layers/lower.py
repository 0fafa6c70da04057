"""Lowers a resolved workload to the blocks of operators that one rank executes: layers, embedding, head, MTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from projector.errors import Unsupported
from projector.frameworks.types import Resolved
from projector.layers import (
    altup,
    attention_blocks,
    attention_compressed,
    attention_gqa,
    attention_mla,
    autocast,
    delta,
    lightning,
    mamba,
    mamba1,
    shared_block,
    short_convolution,
)
from projector.layers import mtp as prediction
from projector.layers.cross_attention import cross_attention
from projector.layers.embedding import embed
from projector.layers.head import output
from projector.layers.local import LayerView, local
from projector.layers.mlp import mlp
from projector.layers.moe import moe_layer
from projector.layers.norms import parallel_residual
from projector.layers.recompute import recomputed
from projector.layers.towers import after_stack, before_stack, frozen, image_placement
from projector.memo import cached_on, evolve
from projector.operators.module import Block, Module, Recomputed, block
from projector.operators.saved import once
from projector.operators.types import added
from projector.workload.layer_kinds import (
    Attention,
    GatedDeltaNet,
    KimiDelta,
    Lightning,
    Mamba1,
    Mamba2,
    Parallel,
    Recurrent,
    SharedBlock,
    ShortConvolution,
)
from projector.workload.model import LayerKind, Model
from projector.workload.sparse import BlockAttention, CompressedAttention
from projector.workload.workload import Workload

Builder = Callable[[LayerKind, LayerView], tuple[Module, ...]]
ATTENTIONS: tuple[tuple[Callable[[Model], bool], Builder], ...] = (
    (attention_mla.applies, attention_mla.attention),
    (attention_gqa.applies, attention_gqa.attention),
)
"""Builders of softmax attention: the first one that applies to the model is taken."""


@cached_on(1)
def layer(kind: LayerKind, resolved: Resolved, quantised: bool = True) -> Block:
    """Returns one decoder layer of ``kind`` for one micro-batch on one rank.

    ``quantised=False``: this layer stays in bf16 whatever the recipe's precision (``first_last_layers_bf16``).
    ``recompute`` holds what is replayed *if* the recipe recomputes this layer (which layers it does is the schedule's
    matter). Raises :class:`Unsupported` for an architecture part no operator lowers.
    """
    work = resolved.workload
    wide = evolve(resolved, workload=evolve(work, recipe=evolve(work.recipe, precision="bf16")))
    seen = _within_kind(kind, resolved if quantised else wide)
    view = local(seen)
    parts = frozen(_layer_parts(kind, view), view, forward_only=kind.tower is not None)
    before, after = frozen(before_stack(kind, view), view, forward_only=kind.tower is not None), after_stack(kind, view)
    outer = tuple(saved for part in (*before, *after) for saved in part.saves)
    decoder = block(f"layer_{kind.name}", (*before, *parts, *after), _graphed(parts, view), _offloaded(view))
    decoder = _referenced(decoder, lambda frozen: _layer_parts(kind, frozen), view)
    replay = recomputed(parts, view.recipe, view.execution.recompute)
    return _sharded(decoder, view, seen.workload).under(replace(replay, kept=once((*replay.kept, *outer))))


@cached_on(1)
def residual_bytes(kind: LayerKind, resolved: Resolved) -> float:
    """Returns the bytes of the residual that enters a layer of ``kind``."""
    return local(_within_kind(kind, resolved)).residual_bytes


@cached_on(0)
def embedding(resolved: Resolved) -> Block:
    """Returns the input embedding (first stage) for one micro-batch."""
    return _end_block("embedding", lambda view: (*embed(view), *image_placement(view)), resolved)


@cached_on(0)
def head(resolved: Resolved) -> Block:
    """Returns the final norm, output layer and loss (last stage) for one micro-batch."""
    return _end_block("head", lambda view: autocast.with_copies(output(view), view), resolved)


@cached_on(0)
def mtp(resolved: Resolved) -> Block:
    """Returns one depth of multi-token prediction with its output layer and loss."""
    view, (inner, depth_parts) = local(resolved), _prediction(resolved)
    parts = _with_shared_weights((*depth_parts, *prediction.loss(view)), view)
    return _sharded(_replayed(block("mtp", parts, _graphed(inner, view)), inner, resolved), view, resolved.workload)


@cached_on(0)
def mtp_layer(resolved: Resolved) -> Block:
    """Returns the same as :func:`mtp` without output layer and loss, which model and depths compute together at the end."""
    view = local(resolved)
    parts = _with_shared_weights(_prediction(resolved)[1], view)
    return _replayed(block("mtp_layer", parts, offloaded=_offloaded(view)), parts, resolved)


def _end_block(name: str, build: Callable[[LayerView], tuple[Module, ...]], resolved: Resolved) -> Block:
    """Builds the embedding or the head, which a graph of the layers leaves out."""
    view = local(resolved)
    parts = frozen(build(view), view, forward_only=name == "embedding" and view.model.vision is None)
    end = block(name, parts, _graphed(parts, view, whole=False))
    return _sharded(_referenced(end, build, view), view, resolved.workload)


def _referenced(unit: Block, build: Callable[[LayerView], tuple[Module, ...]], view: LayerView) -> Block:
    """Returns ``unit`` after a forward of the frozen reference, without adapters, on the same sequences, which saves nothing
    (modelscope/ms-swift@3602360a5 swift/megatron/trainers/dpo_trainer.py: under ``no_grad``, in the same pass)."""
    if not view.recipe.reference:
        return unit
    frozen = replace(view, recipe=replace(view.recipe, lora=None))
    forward = tuple(op for part in build(frozen) for op in part.forward)
    return replace(unit, forward=(*forward, *unit.forward))


@cached_on(0)
def _prediction(resolved: Resolved) -> tuple[tuple[Module, ...], tuple[Module, ...]]:
    """Returns (modules of the layer of a prediction depth, the modules of the whole depth)."""
    kind = resolved.workload.model.mtp_kind
    view = local(_within_kind(kind, resolved))
    inner = _layer_parts(kind, view)
    return inner, prediction.depth(inner, view)


def _with_shared_weights(parts: tuple[Module, ...], view: LayerView) -> tuple[Module, ...]:
    """Gives weights of ``parts`` a storage common to all depths, where depths share them."""
    if not view.model.mtp_use_repeated_layer:
        return parts
    return tuple(
        replace(part, weights=tuple(w if w.storage else replace(w, storage=f"mtp.{w.name}") for w in part.weights))
        for part in parts
    )


def _replayed(depth: Block, parts: tuple[Module, ...], resolved: Resolved) -> Block:
    """Returns ``depth`` under whole-layer recompute, which replays prediction modules if ``uniform``, none under ``block``
    (NVIDIA/Megatron-LM@d98e8a64dd megatron/core/transformer/multi_token_prediction.py, ``_checkpointed_forward``)."""
    recipe = resolved.workload.recipe
    passed_by = recipe.recompute_granularity == "full" and recipe.recompute_method == "block"
    return depth.under(Recomputed(kept=depth.kept) if passed_by else recomputed(parts, recipe))


def _sharded(unit: Block, view: LayerView, workload: Workload) -> Block:
    """Returns ``unit`` with the copies of sharded data parallelism around it."""
    if not view.trainable:
        return unit
    before, again, after = view.execution.data_parallel.copied(unit.name, workload, unit.owned.total, view.act)
    return replace(unit, forward=(*before, *unit.forward), backward_input=(*again, *unit.backward_input, *after))


def _within_kind(kind: LayerKind, resolved: Resolved) -> Resolved:
    """Returns ``resolved`` with the heads and widths of a layer of ``kind``, and the tokens of its stack."""
    work = resolved.workload
    model = work.model.within(kind)
    if kind.tower:
        recipe = kind.tower.seen(work.recipe)
        return evolve(resolved, workload=evolve(work, model=model, recipe=recipe))
    return resolved if model is work.model else evolve(resolved, workload=evolve(work, model=model))


@cached_on(1)
def _layer_parts(kind: LayerKind, view: LayerView) -> tuple[Module, ...]:
    model = view.model
    if model.unsupported:
        raise Unsupported(", ".join(model.unsupported))
    parts = (*_mixer(kind, view), *(cross_attention(view) if kind.cross else ()), *_mlp(kind, view))
    parts = altup.with_altup(parallel_residual(parts, view) if model.parallel_residual else parts, view)
    return autocast.with_copies(parts, view)


def _mixer(kind: LayerKind, view: LayerView) -> tuple[Module, ...]:
    chosen = view.model.indexer is not None or not isinstance(kind.mixer, Attention | Recurrent | None)
    if view.recipe.document_lengths and chosen:
        raise Unsupported(f"packed documents in layers of {kind.name}")
    if view.recipe.dynamic_context_parallel and view.recipe.cp > 1 and not isinstance(kind.mixer, Attention | None):
        raise Unsupported(
            f"dynamic context parallelism of layers of {kind.name}: their state is divided over all ranks"
        )
    return () if kind.mixer is None else _built_mixer(replace(kind, mlp=None), view)


@cached_on(1)
def _built_mixer(kind: LayerKind, view: LayerView) -> tuple[Module, ...]:
    """Builds the first half of a layer, which is the same with and without experts."""
    mixer = kind.mixer
    if isinstance(mixer, Attention):
        return next(parts for applies, parts in ATTENTIONS if applies(view.model))(kind, view)
    if isinstance(mixer, BlockAttention):
        return attention_blocks.attention(mixer, kind, view)
    if isinstance(mixer, Parallel):
        return _attention_beside_mamba(mixer, kind, view)
    return MIXERS[type(mixer)](mixer, view)


def mixer_tensors(kind: LayerKind, resolved: Resolved) -> frozenset[str]:
    """Returns the names of the tensors that the first half of a layer saves; the others belong to its MLP or experts."""
    parts = _mixer(kind, local(_within_kind(kind, resolved)))
    return frozenset(saved.tensor for part in parts for saved in part.saves)


def attends(kind: LayerKind) -> bool:
    """Returns whether the mixer of ``kind`` is softmax attention."""
    return isinstance(kind.mixer, Attention | BlockAttention | CompressedAttention | SharedBlock | Parallel)


def _attention_beside_mamba(m: Parallel, kind: LayerKind, view: LayerView) -> tuple[Module, ...]:
    """Returns attention and Mamba-2 heads side by side on one norm; their outputs are summed (Falcon-H1, arXiv:2507.22448).

    transformers models/falcon_h1/modeling_falcon_h1.py (``FalconH1DecoderLayer``); NVIDIA-NeMo/Megatron-Bridge@067f987d
    src/megatron/bridge/models/falcon_h1/modeling_falconh1/falconh1_layer.py.
    """
    first, *attention, last = attention_gqa.attention(replace(kind, mixer=m.attention), view)
    heads = mamba.mixer(m.mamba, view)[1:-1]
    forward = added("heads.add", view.hidden_bytes, folded=view.compiled)
    backward = added("heads.grad_add", view.hidden_bytes, folded=False)  # the gradients of both meet at the norm
    first = replace(first, backward_input=(backward, *first.backward_input))
    return (first, *attention, *heads, Module("heads", forward=(forward,)), last)


MIXERS: Mapping[type, Callable[[Any, LayerView], tuple[Module, ...]]] = MappingProxyType(
    {
        CompressedAttention: attention_compressed.attention,
        Mamba1: mamba1.mixer,
        Mamba2: mamba.mixer,
        SharedBlock: shared_block.mixer,
        GatedDeltaNet: delta.gated,
        KimiDelta: delta.kimi,
        Lightning: lightning.mixer,
        ShortConvolution: short_convolution.mixer,
    }
)
"""Builders of the first half of a layer without grouped-query or latent attention, by its mixer."""


def _mlp(kind: LayerKind, view: LayerView) -> tuple[Module, ...]:
    if kind.mlp is None:
        return ()
    if not kind.moe:
        return mlp(view)
    if view.model.moe is None:
        raise Unsupported(f"{view.model.name}: a layer with experts, but the model has none")
    return moe_layer(view.model.moe, view)


def _offloaded(view: LayerView) -> frozenset[str]:
    return frozenset(view.recipe.offload_modules or ())


def _graphed(parts: tuple[Module, ...], view: LayerView, whole: bool = True) -> frozenset[str]:
    """Returns the names of the operators whose launches a graph replaces, by the modules of ``cuda_graph_scope``."""
    scope = frozenset(view.recipe.cuda_graph_scope or ())
    everything = "full_iteration" in scope or ("full" in scope and whole)
    return frozenset(name for part in parts if everything or part.tags & scope for name in part.operator_names())
