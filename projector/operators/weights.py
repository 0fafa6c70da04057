"""The weights of one rank, as the modules that hold them declare them: the one book of parameters.

Parameters, gradients, optimizer states and products, reductions, gathers, quantised copies: all are folds over these.
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
    """``rows`` × ``columns`` elements, ``count`` times on this rank (local experts).

    ``role``: ``linear`` (a matrix whose product low precision quantises), ``output``, ``embedding``, ``router``,
    ``vector`` (norms, biases) or ``adapter``. ``split``: the side that tensor parallelism cuts, ``rows`` or ``columns``
    (empty: every rank holds the whole). ``parts``: rows of the matrices that it joins (queries, keys, values).
    ``expert``: of routed experts. ``storage``: weights of one such name are one tensor where a rank holds several.
    ``borrowed``: another module of the model owns it; a rank without that one keeps a copy. ``frozen``: not trained.
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

    def __hash__(self) -> int:  # of what tells most of them apart: memory asks for nothing more often
        return hash((self.name, self.rows, self.columns))

    @property
    def elements(self) -> float:
        return real(self.rows) * self.columns * self.count

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns


def stored_at(weights: Iterable[Weight], storage: str, borrowed: bool = False) -> tuple[Weight, ...]:
    """Returns the same weights, one tensor with all others of the name ``storage`` on their rank."""
    return tuple(replace(weight, storage=storage, borrowed=borrowed) for weight in weights)


def borrowed(weights: Iterable[Weight]) -> tuple[Weight, ...]:
    """The same weights where every named storage belongs to another module."""
    return tuple(replace(weight, borrowed=True) if weight.storage else weight for weight in weights)


@dataclass(frozen=True)
class WeightSet:
    """Every distinct weight that modules of a rank hold together, and how many of it there are."""

    weights: Mapping[Weight, int]

    def __add__(self, other: WeightSet) -> WeightSet:
        return _together([*self.weights.items(), *other.weights.items()])

    @cached_property
    def dense(self) -> float:
        """Returns the elements outside routed experts: reduced over dp·cp."""
        return self.sum(expert=False)

    @cached_property
    def expert(self) -> float:
        """Returns the elements of routed experts: reduced over expert-data-parallel ranks."""
        return self.sum(expert=True)

    @cached_property
    def _elements(self) -> tuple[float, float]:
        found: list[float] = [0, 0]
        for weight, number in self.weights.items():
            found[weight.expert] += weight.elements * number
        return found[0], found[1]

    @cached_property
    def stored(self) -> Mapping[str, Weight]:
        """Returns the weights that have the name of a storage, by it."""
        return {weight.storage: weight for weight in self.weights if weight.storage}

    @property
    def total(self) -> float:
        return self.dense + self.expert

    @property
    def trained(self) -> WeightSet:
        """Those that are not frozen."""
        return self._where([not weight.frozen for weight in self.weights])

    def only(self, *roles: str) -> WeightSet:
        return self._where([weight.role in roles for weight in self.weights])

    def _where(self, chosen: Sequence[bool]) -> WeightSet:
        """Itself where it is all of them, as it mostly is: what is summed of it stays known."""
        return self if all(chosen) else WeightSet(dict(compress(self.weights.items(), chosen)))

    @property
    def products(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Returns (rows, columns) of the matrices outside routed experts, the output layer among them, and inside."""
        dense = [weight.shape for weight in self.weights if not weight.expert and weight.role in ("linear", "output")]
        return dense, [w.shape for w in self.weights if w.expert and w.role == "linear"]

    def sum(self, *, expert: bool) -> float:
        return self._elements[expert]

    def typical(self, *, expert: bool) -> float:
        """Returns the elements of the tensor that an element drawn at random is of; 0 where there is none."""
        each = [(w.elements * n, w.rows * w.columns) for w, n in self.weights.items() if w.expert == expert]
        whole = sum(elements for elements, _ in each)
        return sum(elements * size for elements, size in each) / whole if whole else 0.0

    def tensors(self, *, expert: bool) -> int:
        """Returns how many there are, each of its own."""
        return sum(weight.count * number for weight, number in self.weights.items() if weight.expert == expert)


def held(groups: Iterable[tuple[Iterable[Weight], int]]) -> WeightSet:
    """``groups``: the weights of a module and how many of it the rank has."""
    return _together((weight, number) for weights, number in groups for weight in weights)


def _together(weights: Iterable[tuple[Weight, int]]) -> WeightSet:
    """The sum of them, each named storage once."""
    found: dict[Weight, int] = {}
    seen: set[str] = set()
    for weight, number in weights:
        if not weight.storage:
            distinct = len(found)
            before = found.setdefault(weight, number)  # most are new: one look is enough
            if len(found) == distinct:
                found[weight] = before + number
        elif weight.storage not in seen:
            seen.add(weight.storage)
            found[weight] = 1
    return WeightSet(found)
