"""The weights of one pipeline rank, as its modules declare them, summed as memory needs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from typing import NamedTuple

from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.layers import lower
from projector.operators.weights import Weight, WeightSet, weight_set
from projector.size import most
from projector.workload.composition import Composition
from projector.workload.model import LayerKind


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Weights of one pipeline rank. ``weights``: all but adapters; ``trained``: those that the optimizer steps.
    Elements of ``unit``, the largest layer (one unit of sharded data parallelism), of ``embedding`` and ``head``, the
    units at the ends of the model where the rank holds them, and of ``adapters``."""

    weights: WeightSet
    trained: WeightSet
    unit: float
    embedding: float
    head: float
    adapters: float = 0.0


class Contents(NamedTuple):
    """The parts of the model on one rank: layers by kind, whether it has embedding and head, how many MTP modules."""

    layers: tuple[tuple[LayerKind, int], ...]
    embedding: bool
    head: bool
    mtp: int

    @property
    def shape(self) -> Hashable:
        """Returns a key that is equal for ranks that differ only in how many layers of each kind they hold."""
        return tuple(kind for kind, _ in self.layers), *self[1:]

    @property
    def blocks(self) -> tuple[tuple[Hashable, int], ...]:
        """Returns the names of its blocks (:func:`weights_of`) with their numbers."""
        ends = ("embedding", int(self.embedding)), ("head", int(self.head)), ("mtp", self.mtp)
        return *self.layers, *((name, number) for name, number in ends if number)

    @property
    def names(self) -> Iterator[Hashable]:
        """Yields the names of all blocks (:func:`weights_of`) that such a rank holds or that save something there."""
        yield from (kind for kind, _ in self.layers)
        yield from ("embedding",) if self.embedding or self.mtp else ()
        yield from ("head",) if self.head or self.mtp else ()
        yield from ("mtp", "mtp_layer") if self.mtp else ()


@lru_cache(maxsize=4096)
def contents(chunks: tuple[Composition, ...]) -> Contents:
    """Returns what a rank with these chunks holds."""
    count = Counter(layer.kind for chunk in chunks for layer in chunk.layers)
    return Contents(
        tuple(count.items()),
        any(chunk.embedding for chunk in chunks),
        any(chunk.head for chunk in chunks),
        sum(chunk.mtp[0] for chunk in chunks),
    )


class Weights(NamedTuple):
    """The weights of one block, and the elements of those that the block owns."""

    weights: tuple[Weight, ...]
    owned: float


def weights_of(resolved: Resolved, name: Hashable) -> Weights:
    """Returns the weights of the layer of a kind, or of the block ``embedding``, ``head`` or ``mtp``."""
    block = lower.layer(name, resolved, True) if isinstance(name, LayerKind) else getattr(lower, str(name))(resolved)
    return Weights(block.weights, block.owned.total)


def stage(resolved: Resolved, own: Contents, of: Callable[[Hashable], Weights]) -> StageParameters:
    """Returns the weights of one rank with the contents ``own``. ``of``: returns the weights of a block
    (:func:`weights_of`)."""
    count, embeds, heads, mtps = own
    units = [(of(kind), number) for kind, number in count] + ([(of("mtp"), mtps)] if mtps else [])
    layers, extra = units[: len(count)], units[len(count) :]
    ends = [(of("embedding"), 1)] * embeds, [(of("head"), 1)] * heads
    whole = weight_set((block.weights, number) for block, number in (*ends[0], *layers, *ends[1], *extra))
    return StageParameters(
        weights=whole.only("linear", "output", "embedding", "router", "vector"),
        trained=whole.only("adapter") if resolved.workload.recipe.lora else whole.trained,
        unit=most(0.0, *[block.owned for block, _ in units]),
        embedding=of("embedding").owned if embeds or mtps else 0.0,
        head=of("head").owned if heads else 0.0,
        adapters=whole.only("adapter").total,
    )
