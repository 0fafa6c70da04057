"""What one rank of a pipeline holds: the weights its modules declare, folded as memory needs them."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.layers import lower
from projector.operators.part import Block
from projector.operators.weights import Held, held
from projector.workload.composition import Composition
from projector.workload.model import LayerKind


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Weights of one pipeline rank. ``weights``: all but adapters; ``trained``: those that the optimizer steps. Elements of
    ``unit``, the largest layer (one unit of sharded data parallelism), of ``embedding`` and ``head``, the units at the
    ends of the model where the rank holds them, and of ``adapters``."""

    weights: Held
    trained: Held
    unit: float
    embedding: float
    head: float
    adapters: float = 0.0


class Contents(NamedTuple):
    """What one rank holds: layers by kind, and whether it has the embedding, the head, how many MTP modules."""

    layers: tuple[tuple[LayerKind, int], ...]
    embedding: bool
    head: bool
    mtp: int


@lru_cache(maxsize=4096)
def contents(chunks: tuple[Composition, ...]) -> Contents:
    """Of one rank, whose chunks are made of these."""
    count = Counter(layer.kind for chunk in chunks for layer in chunk.layers)
    return Contents(
        tuple(count.items()),
        any(chunk.embedding for chunk in chunks),
        any(chunk.head for chunk in chunks),
        sum(chunk.mtp[0] for chunk in chunks),
    )


def stage(resolved: Resolved, own: Contents) -> StageParameters:
    """Weights of one rank of a run as its weights see it."""
    count, embeds, heads, mtps = own
    layers = [(lower.layer(kind, resolved), number) for kind, number in count]
    first, last, extra = lower.embedding(resolved), lower.head(resolved), mtps and lower.mtp(resolved)
    groups = [*((first, 1) for _ in range(embeds)), *layers, *((last, 1) for _ in range(heads))]
    units = [block for block, _ in layers]
    if isinstance(extra, Block):
        groups.append((extra, mtps))
        units.append(extra)
    whole = held((block.weights, number) for block, number in groups)
    return StageParameters(
        weights=whole.only("linear", "output", "embedding", "router", "vector"),
        trained=whole.only("adapter") if resolved.workload.recipe.lora else whole.trained,
        unit=max((block.owned.total for block in units), default=0.0),
        embedding=first.owned.total if embeds or mtps else 0.0,
        head=last.owned.total if heads else 0.0,
        adapters=whole.only("adapter").total,
    )
