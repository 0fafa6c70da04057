"""The weights of one rank, as the modules that hold them declare them.

Parameters, gradients, optimizer states, products, reductions, gathers and quantised copies are folds over them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import compress

from projector.dataclass import dataclass
from projector.size import real


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight of ``rows`` × ``columns`` elements, ``count`` times on this rank (local experts).

    ``role``: ``linear`` (a matrix whose product low precision quantises), ``output``, ``embedding``, ``router``,
    ``vector`` (norms, biases) or ``adapter``. ``split``: the side that tensor parallelism cuts, ``rows`` or ``columns``
    (empty: every rank holds the whole). ``parts``: rows of the matrices that are joined in it (queries, keys, values).
    ``expert``: it belongs to a routed expert. ``storage``: weights of one storage name are one tensor where a rank
    holds several. ``borrowed``: another module of the model owns it; a rank without that module keeps a copy.
    ``frozen``: it is not trained.
    """

    name: str
    rows: int
    columns: int = 1
    count: int = 1
    role: str = "vector"
    expert: bool = False
    split: str = ""
    parts: tuple[int, ...] = ()
    storage: str = ""
    borrowed: bool = False
    frozen: bool = False

    def __hash__(self) -> int:  # the fields that differ most: this is the hash that memory asks for most often
        return hash((self.name, self.rows, self.columns))

    @property
    def elements(self) -> float:
        return real(self.rows) * self.columns * self.count

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns


def with_storage(weights: Iterable[Weight], storage: str, borrowed: bool = False) -> tuple[Weight, ...]:
    """Returns the ``weights`` as one tensor with all others of the name ``storage`` on their rank."""
    return tuple(replace(weight, storage=storage, borrowed=borrowed) for weight in weights)


def borrowed(weights: Iterable[Weight]) -> tuple[Weight, ...]:
    """Returns the ``weights`` with every named storage owned by another module."""
    return tuple(replace(weight, borrowed=True) if weight.storage else weight for weight in weights)


@dataclass(frozen=True)
class WeightSet:
    """Every distinct weight that modules of a rank hold together, with the number of its copies."""

    weights: Mapping[Weight, int]

    def __add__(self, other: WeightSet) -> WeightSet:
        return _together([*self.weights.items(), *other.weights.items()])

    @cached_property
    def dense(self) -> float:
        """Returns the elements outside routed experts, which are reduced over dp·cp."""
        return self.sum(expert=False)

    @cached_property
    def expert(self) -> float:
        """Returns the elements of routed experts, which are reduced over expert-data-parallel ranks."""
        return self.sum(expert=True)

    @cached_property
    def _elements(self) -> tuple[float, float]:
        elements: list[float] = [0, 0]
        for weight, number in self.weights.items():
            elements[weight.expert] += weight.elements * number
        return elements[0], elements[1]

    @cached_property
    def stored(self) -> Mapping[str, Weight]:
        """Returns the weights that name a storage, by the name of the storage."""
        return {weight.storage: weight for weight in self.weights if weight.storage}

    @property
    def total(self) -> float:
        return self.dense + self.expert

    @property
    def trained(self) -> WeightSet:
        """Returns the weights that are not frozen."""
        return self._where([not weight.frozen for weight in self.weights])

    def only(self, *roles: str) -> WeightSet:
        """Returns the weights that play one of the ``roles``."""
        return self._where([weight.role in roles for weight in self.weights])

    def _where(self, chosen: Sequence[bool]) -> WeightSet:
        """Returns this very set when all are chosen, as they mostly are, so that cached sums are used again."""
        return self if all(chosen) else WeightSet(dict(compress(self.weights.items(), chosen)))

    @property
    def products(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Returns (rows, columns) of the matrices outside routed experts, output layer included, and inside."""
        dense = [weight.shape for weight in self.weights if not weight.expert and weight.role in ("linear", "output")]
        return dense, [w.shape for w in self.weights if w.expert and w.role == "linear"]

    def sum(self, *, expert: bool) -> float:
        """Returns the elements of routed experts, or of all other weights."""
        return self._elements[expert]

    def typical(self, *, expert: bool) -> float:
        """Returns the expected size (elements) of the tensor to which a random element belongs; 0 without any."""
        tensors = [(w.elements * n, w.rows * w.columns) for w, n in self.weights.items() if w.expert == expert]
        total = sum(elements for elements, _ in tensors)
        return sum(elements * size for elements, size in tensors) / total if total else 0.0

    def tensors(self, *, expert: bool) -> int:
        """Returns how many tensors the weights of routed experts, or all others, are."""
        return sum(weight.count * number for weight, number in self.weights.items() if weight.expert == expert)


def weight_set(groups: Iterable[tuple[Iterable[Weight], int]]) -> WeightSet:
    """Returns the weights of ``groups``: the weights of a module and how many such modules the rank has."""
    return _together((weight, number) for weights, number in groups for weight in weights)


def _together(weights: Iterable[tuple[Weight, int]]) -> WeightSet:
    """Sums the counts of equal weights; each named storage counts once."""
    counts: dict[Weight, int] = {}
    storages: set[str] = set()
    for weight, number in weights:
        if not weight.storage:
            distinct = len(counts)
            before = counts.setdefault(weight, number)  # most are new: one look is enough
            if len(counts) == distinct:
                counts[weight] = before + number
        elif weight.storage not in storages:
            storages.add(weight.storage)
            counts[weight] = 1
    return WeightSet(counts)
