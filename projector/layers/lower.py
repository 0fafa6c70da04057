"""From a resolved workload to the blocks of operators that one rank executes: layers, embedding, head, MTP."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from projector.errors import Unsupported
from projector.frameworks.types import Resolved
from projector.layers import attention_gqa, attention_mla
from projector.layers.embedding import embed
from projector.layers.head import output
from projector.layers.local import Local, local
from projector.layers.mlp import mlp
from projector.layers.moe import moe_layer
from projector.layers.mtp import depth
from projector.layers.part import Part, block
from projector.layers.recompute import replay
from projector.layers.types import Block, Stream
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
    return _sharded(
        block(f"layer_{name}", parts, replay(parts, lo.recipe, lo.execution.replay_pruned), _graphed(parts, lo)), lo
    )


@cache
def embedding(resolved: Resolved) -> Block:
    """The input embedding (first stage) for one micro-batch."""
    lo = local(resolved)
    parts = embed(lo)
    return _sharded(block("embedding", parts, graphed=_graphed(parts, lo, whole=False)), lo)


@cache
def head(resolved: Resolved) -> Block:
    """Final norm, output layer and loss (last stage)."""
    lo = local(resolved)
    parts = output(lo)
    return _sharded(block("head", parts, graphed=_graphed(parts, lo, whole=False)), lo)


@cache
def mtp(resolved: Resolved) -> Block:
    """One depth of multi-token prediction with its output layer and loss."""
    lo = local(resolved)
    kind = lo.model.layer_kinds[-1]
    inner = _layer_parts(kind, lo)
    parts = depth(inner, lo)
    return _sharded(block("mtp", parts, replay(inner, lo.recipe), _graphed(inner, lo)), lo)


def _sharded(made: Block, lo: Local) -> Block:
    """The copies of FSDP2 around a unit: gathered weights split into parameters, gradients packed and cast for the wire
    (torch distributed/fsdp/_fully_shard/_fsdp_collectives.py, ``split_with_sizes_copy`` and ``chunk_cat``). One-buffer
    implementations (FSDP1, Megatron-FSDP) work on views."""
    x, recipe = lo.execution, lo.recipe
    weights = made.owned.total
    if x.data_parallel != "fsdp2" or (recipe.data_parallel_shard_size or 1) == 1 or not weights or not lo.trainable:
        return made
    gathered, wire = x.gather_bytes * weights, x.reduce_bytes * weights
    split = Stream(name=f"{made.name}.copy_out", kind="copy", read=gathered, write=gathered)
    again = replace(split, name=f"{made.name}.copy_out.bwd")
    pack = Stream(name=f"{made.name}.chunk_cat", kind="copy", read=lo.act * weights, write=wire)
    return replace(made, forward=(split, *made.forward), backward_input=(again, *made.backward_input, pack))


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
