"""What one rank of a pipeline holds: the weights its modules declare, folded as memory needs them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from projector.frameworks.scope import as_layers_see
from projector.frameworks.types import Resolved
from projector.layers import lower
from projector.layers.types import Block
from projector.layers.weights import Held, held
from projector.workload.layout import Chunk
from projector.workload.model import LayerKind

__all__ = ["StageParameters", "Weights", "stage"]

Shape = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of one rank, elements.

    ``dense`` and ``expert`` count everything but adapters; ``linear`` and ``expert_linear`` the matrices of quantisable
    linear layers among them; ``shapes`` those matrices' (rows, columns), for caches that exist once per distinct shape
    (the output layer is no quantised linear, but it shares the cache of placeholder gradients).
    """

    dense: float
    expert: float = 0.0
    linear: float = 0.0
    expert_linear: float = 0.0
    shapes: frozenset[Shape] = frozenset()
    expert_shapes: frozenset[Shape] = frozenset()

    @property
    def total(self) -> float:
        return self.dense + self.expert


@dataclass(frozen=True, slots=True)
class StageParameters:
    """All weights of one pipeline rank. ``trained``: those that the optimizer steps; ``unit``: the largest
    layer (one unit of sharded data parallelism); ``embedding`` and ``head``: the units at the ends of the model, where the
    rank holds them; ``adapters``: LoRA."""

    weights: Weights
    trained: Held
    unit: float
    embedding: float
    head: float
    adapters: float = 0.0


def stage(resolved: Resolved, chunks: Iterable[Chunk]) -> StageParameters:
    """Weights of one rank that holds these model chunks (all of them on the same pipeline rank)."""
    kinds = resolved.workload.model.layer_kinds
    count: dict[LayerKind, int] = {}
    embeds = heads = mtps = 0
    for chunk in chunks:
        for index in chunk.layers:
            count[kinds[index]] = count.get(kinds[index], 0) + 1
        embeds += chunk.embedding
        heads += chunk.head
        mtps += chunk.mtp
    return _folded(as_layers_see(resolved), tuple(count.items()), min(embeds, 1), min(heads, 1), mtps)


@lru_cache(maxsize=1024)
def _folded(
    resolved: Resolved, count: tuple[tuple[LayerKind, int], ...], embeds: int, heads: int, mtps: int
) -> StageParameters:
    layers = [(lower.layer(kind, resolved), number) for kind, number in count]
    first, last, extra = lower.embedding(resolved), lower.head(resolved), mtps and lower.mtp(resolved)
    groups = [*((first, 1) for _ in range(embeds)), *layers, *((last, 1) for _ in range(heads))]
    units = [block for block, _ in layers]
    if isinstance(extra, Block):
        groups.append((extra, mtps))
        units.append(extra)
    whole = held((block.weights, number) for block, number in groups)
    return StageParameters(
        weights=_weights(whole),
        trained=whole.only("adapter") if resolved.workload.recipe.lora else whole,
        unit=max((block.owned.total for block in units), default=0.0),
        embedding=first.owned.total if embeds or mtps else 0.0,
        head=last.owned.total if heads else 0.0,
        adapters=whole.only("adapter").total,
    )


def _weights(whole: Held) -> Weights:
    linear, model = whole.only("linear"), whole.only("linear", "output", "embedding", "router", "vector")

    def shapes(held: Held, expert: bool) -> frozenset[Shape]:
        return frozenset(weight.shape for weight in held.weights if weight.expert == expert)

    return Weights(
        dense=model.dense,
        expert=model.expert,
        linear=linear.dense,
        expert_linear=linear.expert,
        shapes=shapes(whole.only("linear", "output"), False),
        expert_shapes=shapes(linear, True),
    )
