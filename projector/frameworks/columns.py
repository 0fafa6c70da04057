"""Many runs as columns: runs that differ in sizes alone become one run, and sums over parts of them are taken together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass
from projector.errors import InputError, Unsupported
from projector.frameworks.scope import STAGES, in_columns, numbers
from projector.frameworks.types import Resolved
from projector.size import Floats, Rows, column, raw, rows, trace

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Runs:
    """Settled runs. Those of one group differ in the sizes of a rank and in their batch alone, so that their layers
    stand on the same pipeline. ``ones``: a run of each group; ``group`` ``[runs]``: the group of each run; ``cells``
    ``[numbers, runs]``: its sizes (:func:`projector.frameworks.scope.numbers`)."""

    ones: Sequence[Resolved]
    group: Rows
    cells: NDArray[np.int64]

    @classmethod
    def of(cls, runs: Sequence[Resolved]) -> Runs:
        """Returns runs with a group each, since nothing is known of what they share."""
        return cls(runs, np.arange(len(runs)), numbers(runs))

    def __len__(self) -> int:
        return len(self.group)

    def __getitem__(self, row: int) -> Resolved:
        return in_columns(self.ones[self.group[row]], self.cells[:, row : row + 1])

    def column(self, those: Rows) -> Resolved:
        """Returns the runs ``those``, which are of one group, as one run."""
        return in_columns(self.ones[self.group[those[0]]], self.cells[:, those])

    def only(self, those: Rows) -> Runs:
        """Returns the runs ``those``."""
        kept, group = np.unique(self.group[those], return_inverse=True)
        return Runs([self.ones[i] for i in kept.tolist()], group.reshape(-1), self.cells[:, those])

    def groups(self, those: Rows | None = None) -> Iterator[tuple[Resolved, Rows]]:
        """Yields a run of each group, and the runs (of ``those``) that belong to it."""
        rows = np.arange(len(self)) if those is None else those
        for those in split_by_label(rows, self.group[rows]):
            yield self.ones[self.group[those[0]]], those

    @cached_property
    def microbatches(self) -> NDArray[np.int64]:
        """Returns ``[runs]``: micro-batches of a step."""
        found = np.zeros(len(self), np.int64)
        for _, those in self.groups():
            found[those] = raw(self.column(those).workload.num_microbatches)
        return found


def split_by_label(those: Rows, labels: NDArray[Any]) -> Iterator[Rows]:
    """Yields the rows of ``those`` that share a label, label by label."""
    if len(those):
        order = np.argsort(labels, kind="stable")
        yield from np.split(those[order], np.flatnonzero(np.diff(labels[order])) + 1)


class Layouts:
    """Layouts built together. ``one``: a run with the fields that all share, with as many stages as any; ``cells``
    ``[numbers, rows]``: the sizes of each (:func:`projector.frameworks.scope.numbers`)."""

    def __init__(self, one: Resolved, cells: NDArray[np.int64]) -> None:
        self.one, self.cells = one, cells

    def run(self, those: Rows | slice = slice(None)) -> Resolved:
        """Returns the layouts ``those`` as one run."""
        return in_columns(self.one, self.cells[:, those])

    def folded(
        self,
        asked: Iterable[tuple[Iterable[K], Rows]],
        shape: Callable[[K], Hashable],
        build: Callable[[Resolved, Sequence[K], Rows, Rows], Sequence[float]],
        fields: int,
    ) -> dict[K, Floats]:
        """Returns ``[fields, rows]`` for every key that is ``asked`` for some rows: NaN in all others. Keys of one
        ``shape`` are built together: ``build`` gets a run, these keys, and for every row of the run the index of its
        key and its own number."""
        each: dict[K, list[Rows]] = {}
        for keys, own in asked:
            for key in dict.fromkeys(keys):
                each.setdefault(key, []).append(own)
        together: dict[Hashable, list[tuple[K, Rows]]] = {}
        for key, parts in each.items():
            together.setdefault(shape(key), []).append((key, np.concatenate(parts)))
        found: dict[K, Floats] = {}
        for alike in together.values():
            keys = [key for key, _ in alike]
            which = np.repeat(np.arange(len(alike)), [len(own) for _, own in alike])
            own = np.concatenate([own for _, own in alike])
            values = np.full((len(alike), fields, self.cells.shape[1]), np.nan)

            def made(those: Rows, keys: list[K] = keys, which: Rows = which, own: Rows = own) -> Sequence[float]:
                return build(self.run(own[those]), keys, which[those], own[those])

            for those, made_of in trace(made, len(own)):
                values[which[those], :, own[those]] = np.array([rows(value, len(those)) for value in made_of]).T
            found |= zip(keys, values, strict=True)
        return found


def built_in_groups(
    runs: Runs, alike: Callable[[Resolved], Hashable], build: Callable[[Layouts, Rows], T], wide: int
) -> Iterator[tuple[Rows, T | InputError | Unsupported]]:
    """Yields what ``build`` makes of runs with an equal ``alike`` key that take the same branches, at most ``wide`` at
    once, or why it cannot; with their numbers among ``runs``, which ``build`` gets, too."""
    together: dict[Hashable, list[Rows]] = {}
    for _, those in runs.groups():
        keys = trace(lambda own, those=those: alike(runs.column(those[own])), len(those))  # type: ignore[misc]
        for own, key in keys:
            together.setdefault(key, []).append(those[own])
    for parts in together.values():
        whole = np.concatenate(parts)
        for first in range(0, len(whole), wide):
            group = whole[first : first + wide]

            def known(own: Rows, group: Rows = group) -> T | InputError | Unsupported:
                those = group[own]
                staged = those[np.argmax(runs.cells[STAGES, those])]  # of a run without stages a recipe says nothing
                try:
                    return build(Layouts(runs[staged], runs.cells[:, those]), those)
                except (InputError, Unsupported) as error:
                    return error.with_traceback(None)

            yield from ((group[own], made) for own, made in trace(known, len(group)))


def counted_columns(every: Sequence[Sequence[tuple[T, int]]], place: Rows) -> tuple[tuple[T, Any], ...]:
    """Returns lists of the same things with their counts as one list whose counts are columns: every row has those of
    the list at ``place``."""
    counts = np.array([[number for _, number in each] for each in every]).reshape(len(every), -1)[place]
    return tuple((thing, column(number)) for (thing, _), number in zip(every[0], counts.T, strict=True))
