"""Runs that differ in sizes alone, as one run whose sizes are columns, and what is folded over parts of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from projector.errors import InputError, Unsupported
from projector.frameworks.scope import in_columns, numbers
from projector.frameworks.types import Resolved
from projector.size import Rows, column, rows, trace

K = TypeVar("K")
T = TypeVar("T")
Floats = NDArray[np.float64]


class Layouts:
    """``one``: of what all have in common; ``cells`` ``[numbers, rows]``: sizes of each
    (:func:`projector.frameworks.scope.numbers`)."""

    def __init__(self, one: Resolved, cells: NDArray[np.int64]) -> None:
        self.one, self.cells = one, cells

    def run(self, those: Rows | slice = slice(None)) -> Resolved:
        """Returns those rows of it."""
        return in_columns(self.one, self.cells[:, those])

    def folded(
        self,
        asked: Iterable[tuple[K, Iterable[int]]],
        shape: Callable[[K], Hashable],
        build: Callable[[Resolved, Sequence[K], Rows, Rows], Sequence[float]],
        fields: int,
    ) -> dict[K, Floats]:
        """``[fields, rows]`` of every key that is ``asked`` for some rows: NaN in all others. Keys of one ``shape`` are
        built together: ``build`` is told a run, these keys, and of every row of it which key it has, and which row it is.
        """
        together: dict[Hashable, list[tuple[K, Rows]]] = {}
        for key, own in asked:
            together.setdefault(shape(key), []).append((key, np.fromiter(own, np.intp)))
        found: dict[K, Floats] = {}
        for alike in together.values():
            keys = [key for key, _ in alike]
            which = np.repeat(np.arange(len(alike)), [len(own) for _, own in alike])
            own = np.concatenate([own for _, own in alike])
            values = np.full((len(alike), fields, self.cells.shape[1]), np.nan)

            def made(those: Rows, keys: list[K] = keys, which: Rows = which, own: Rows = own) -> Sequence[float]:
                return build(self.run(own[those]), keys, which[those], own[those])

            for those, each in trace(made, len(own)):
                values[which[those], :, own[those]] = np.array([rows(value, len(those)) for value in each]).T
            found |= zip(keys, values, strict=True)
        return found


def laid_out(
    runs: Sequence[Resolved], alike: Callable[[Resolved], Hashable], build: Callable[[Layouts, Rows], T], wide: int
) -> Iterator[tuple[Rows, T | InputError | Unsupported]]:
    """Yields what ``build`` makes of runs that are ``alike`` and take the same branches, at most ``wide`` of them, or
    why it cannot; with their numbers among ``runs``, which it is told, too."""
    groups: dict[Hashable, list[int]] = {}
    for i, run in enumerate(runs):
        groups.setdefault(alike(run), []).append(i)
    for those in groups.values():
        for first in range(0, len(those), wide):
            group = np.array(those[first : first + wide])
            cells = numbers([runs[i] for i in group])

            def known(own: Rows, group: Rows = group, cells: NDArray[np.int64] = cells) -> T | InputError | Unsupported:
                try:
                    return build(Layouts(runs[group[own[0]]], cells[:, own]), group[own])
                except (InputError, Unsupported) as error:
                    return error

            yield from ((group[own], made) for own, made in trace(known, len(group)))


def numbered(every: Sequence[Sequence[tuple[T, int]]], place: Rows) -> tuple[tuple[T, Any], ...]:
    """Lists of the same things, with how many there are of each: as one list whose numbers are columns, in every row those
    of the list at ``place``."""
    counts = np.array([[number for _, number in each] for each in every]).reshape(len(every), -1)[place]
    return tuple((thing, column(number)) for (thing, _), number in zip(every[0], counts.T, strict=True))
