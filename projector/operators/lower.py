"""From a resolved workload to the blocks of operators that one rank executes: layers, embedding, head, MTP."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from projector.errors import Unsupported
from projector.frameworks.types import Resolved
from projector.operators import attention_gqa, attention_mla
from projector.operators.embedding import embed
from projector.operators.head import output
from projector.operators.local import Local, local
from projector.operators.mlp import mlp
from projector.operators.moe import moe_layer
from projector.operators.mtp import depth
from projector.operators.part import Part, block
from projector.operators.recompute import replay
from projector.operators.types import Block
from projector.workload.model import LayerKind

__all__ = ["embedding", "head", "layer", "mtp"]


@cache
def layer(kind: LayerKind, resolved: Resolved, quantised: bool = True) -> Block:
    """One decoder layer of ``kind`` for one micro-batch on one rank.

    ``quantised=False``: this layer stays in bf16 whatever the recipe's precision (``first_last_layers_bf16``).
    ``recompute`` holds what is replayed *if* the recipe recomputes this layer (which layers it does is the schedule's
    matter). Raises :class:`Unsupported` for an architecture part no operator lowers.
    """
    lo = local(resolved if quantised else _in_bf16(resolved))
    parts = _layer_parts(kind, lo)
    name = ("moe" if kind.moe else "dense") + (f"_w{kind.window}" if kind.window else "")
    return block(f"layer_{name}", parts, replay(parts, lo.recipe), _graphed(parts, lo))


@cache
def embedding(resolved: Resolved) -> Block:
    """The input embedding (first stage) for one micro-batch."""
    lo = local(resolved)
    parts = embed(lo)
    return block("embedding", parts, graphed=_graphed(parts, lo, whole=False))


@cache
def head(resolved: Resolved) -> Block:
    """Final norm, output layer and loss (last stage). A tied weight counts here only where it is a copy of its own."""
    lo = local(resolved)
    tied = not lo.model.untie_embeddings_and_output_weights
    parts = output(lo, shared=tied and lo.recipe.pp == 1)
    return block("head", parts, graphed=_graphed(parts, lo, whole=False))


@cache
def mtp(resolved: Resolved) -> Block:
    """One depth of multi-token prediction with its output layer and loss; shared weights are not counted."""
    lo = local(resolved)
    kind = lo.model.layer_kinds[-1]
    inner = _layer_parts(kind, lo)
    parts = depth(inner, lo)
    return block("mtp", parts, replay(inner, lo.recipe), _graphed(inner, lo))


def _in_bf16(resolved: Resolved) -> Resolved:
    work = resolved.workload
    return replace(resolved, workload=replace(work, recipe=replace(work.recipe, precision="bf16")))


def _layer_parts(kind: LayerKind, lo: Local) -> tuple[Part, ...]:
    model = lo.model
    if model.unsupported:
        raise Unsupported(", ".join(model.unsupported))
    if model.mla is not None:
        attention = attention_mla.attention(kind, model.mla, lo)
    else:
        attention = attention_gqa.attention(kind, lo)
    if not kind.moe:
        return (*attention, *mlp(lo))
    if model.moe is None:
        raise Unsupported(f"{model.name}: a layer with experts, but the model has none")
    if lo.recipe.lora and set(lo.recipe.lora.targets) & {"linear_fc1", "linear_fc2"}:
        raise Unsupported("adapters on routed experts")
    return (*attention, *moe_layer(model.moe, lo))


def _graphed(parts: tuple[Part, ...], lo: Local, whole: bool = True) -> frozenset[str]:
    """Names of the operators whose launches a graph replaces, by the modules of ``cuda_graph_scope``."""
    scope = frozenset(lo.recipe.cuda_graph_scope or ())
    everything = "full_iteration" in scope or ("full" in scope and whole)
    return frozenset(name for part in parts if everything or part.tags & scope for name in part.operator_names())
