"""Activations of every pipeline rank by module: attention, MLP, experts, the ends of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from projector.frameworks.types import Resolved
from projector.layers import lower
from projector.layers.recompute import checkpoint_groups
from projector.memory.holding import holdings, placement
from projector.workload.composition import Composition, compositions
from projector.workload.model import LayerKind

_REST = "between"  # tensors between stages, and inputs of layers that are recomputed as a whole


def by_module(resolved: Resolved, gpu_arch: str) -> tuple[Mapping[str, float], ...]:
    """Returns the bytes that one micro-batch keeps on each pipeline rank, in all of its chunks: by ``attention`` (or
    ``recurrent``: a mixer without softmax), ``mlp``, ``experts`` (with router, exchange, shared experts),
    ``embedding``, ``head`` (and loss), ``mtp`` and ``between``. They sum to what the memory plan multiplies by the
    micro-batches alive."""
    _, kinds = compositions(resolved.workload.model, resolved.workload.recipe)
    places = placement(resolved)
    found = []
    for own, held in zip(places, holdings(resolved, gpu_arch, places), strict=True):
        total = _summed(each for stage in own for each in _chunk(resolved, kinds[stage]))
        total[_REST] = sum(chunk.saved for chunk in held.chunks) - sum(total.values())
        found.append({name: size for name, size in total.items() if abs(size) >= 1.0})
    return tuple(found)


_Sizes = Iterable[tuple[str, float]]


def _summed(sizes: _Sizes) -> dict[str, float]:
    total: dict[str, float] = {}
    for name, size in sizes:
        total[name] = total.get(name, 0.0) + size
    return total


def _chunk(resolved: Resolved, chunk: Composition) -> _Sizes:
    recipe, depths = resolved.workload.recipe, chunk.mtp[0]
    for (group, replayed), number in checkpoint_groups(recipe, chunk):
        if not replayed:
            (each,), whole = group, recipe.recompute_granularity == "full"
            yield from ((name, number * size) for name, size in _layer(each.kind, resolved, whole=whole))
    ends = {"embedding": (lower.embedding, int(chunk.embedding)), "mtp": (lower.mtp_layer, depths)}
    for name, (build, number) in {**ends, "head": (lower.head, chunk.head + depths)}.items():
        if number:
            yield name, number * build(resolved).saved_bytes


def _layer(kind: LayerKind, resolved: Resolved, *, whole: bool) -> _Sizes:
    """Yields what a layer saves, by module. ``whole``: nothing of it is recomputed, though the recipe recomputes others."""
    block, mixer = lower.layer(kind, resolved, True), lower.mixer_tensors(kind, resolved)
    first = "attention" if lower.attends(kind) else "recurrent"
    second = "experts" if kind.moe else "mlp"
    for saved in block.saves if whole else block.kept:
        if saved.since == "forward":
            yield first if saved.tensor in mixer or kind.mlp is None else second, saved.bytes
