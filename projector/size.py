"""Sizes: each is one number, or a column of numbers, one for each of many layouts.

A layer's code is written once and runs on both. Arithmetic on a :class:`Column` is arithmetic on every row of it. A
comparison on which all rows agree is a bool, so that branches stay plain ``if``; where rows disagree :class:`Split` is
raised, and :func:`trace` runs the code again for the rows of each answer apart. So layouts fall into groups of the same
structure.

Python's ``min``, ``max``, ``ceil``, ``int``, ``float`` compare or convert, so that a column would be split row by row:
:func:`least`, :func:`most`, :func:`ceil`, :func:`whole`, :func:`real` take their place in the rooms where layers are built.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import is_dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from projector.memo import names_of

T = TypeVar("T")
N = TypeVar("N", int, float)
Rows = NDArray[np.intp]
Floats = NDArray[np.float64]
NUMBERS = (int, float, np.number)
_PLAIN = frozenset({int, float, str, bool, type(None)})


class Split(Exception):
    """Raised where rows of a column disagree about a branch. ``labels`` ``[rows]``: equal for rows of one branch."""

    def __init__(self, labels: NDArray[Any]) -> None:
        super().__init__("rows of a column take different branches")
        self.labels = labels


class Column:
    """A number for each layout: ``values`` ``[rows]``, of whole numbers or of real ones."""

    __slots__ = ("_hash", "values")
    __array_ufunc__ = None  # so that a NumPy number on the left leaves arithmetic to this class

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values

    def __hash__(self) -> int:
        try:
            return self._hash  # type: ignore[has-type, no-any-return]
        except AttributeError:
            self._hash = hash(self.values.tobytes())
            return self._hash

    if TYPE_CHECKING:  # see _arithmetic

        def __getattr__(self, name: str) -> Any: ...

    def __repr__(self) -> str:
        return f"Column({self.values!r})"

    def __format__(self, spec: str) -> str:
        """Writes the first row: a text of a column is thrown away, and its rows are asked one by one."""
        return format(self.values[0], spec)

    def __bool__(self) -> bool:
        return agreed(self.values != 0)

    def __index__(self) -> int:
        first = self.values[0]
        if (self.values == first).all():
            return int(first)
        raise Split(self.values)

    def __int__(self) -> int:
        return int(self.__float__())

    def __float__(self) -> float:
        first = self.values[0]
        if (self.values == first).all():
            return float(first)
        raise Split(self.values)

    def __neg__(self) -> Column:
        return Column(-self.values)

    def __abs__(self) -> Column:
        return Column(abs(self.values))

    def __ceil__(self) -> Column:
        return Column(np.ceil(self.values).astype(np.int64))

    def __round__(self, digits: int | None = None) -> Column:
        if digits is None:
            return Column(np.round(self.values).astype(np.int64))
        return Column(np.round(self.values, digits))

    def __lt__(self, other: Any) -> bool:
        return agreed(self.values < raw(other))

    def __le__(self, other: Any) -> bool:
        return agreed(self.values <= raw(other))

    def __gt__(self, other: Any) -> bool:
        return agreed(self.values > raw(other))

    def __ge__(self, other: Any) -> bool:
        return agreed(self.values >= raw(other))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Column, *NUMBERS)):
            return False
        return agreed(self.values == raw(other))


def raw(value: Any) -> Any:
    """Returns the values of a column, or the number itself."""
    return value.values if isinstance(value, Column) else value


def _arithmetic(name: str) -> None:
    """Gives :class:`Column` an operator and its reflection."""
    function = getattr(operator, name)

    def forth(self: Column, other: Any) -> Any:
        if type(other) is Column:
            return Column(function(self.values, other.values))
        return Column(function(self.values, other)) if isinstance(other, NUMBERS) else NotImplemented

    def back(self: Column, other: Any) -> Any:
        return Column(function(other, self.values)) if isinstance(other, NUMBERS) else NotImplemented

    setattr(Column, f"__{name}__", forth)
    setattr(Column, f"__r{name}__", back)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _arithmetic(_name)


def are_columns(*values: Any) -> bool:
    """Returns whether any of the values has a number for each layout."""
    return any(isinstance(value, Column) for value in values)


def agreed(answers: NDArray[np.bool_]) -> bool:
    """Returns what all rows answer. Raises :class:`Split` where they disagree."""
    if answers.all():
        return True
    if answers.any():
        raise Split(answers)
    return False


def most(*values: N) -> N:
    """Returns the largest of the values, row by row."""
    for value in values:
        if type(value) is Column:
            return _folded(np.maximum, values)
    return max(values)


def least(*values: N) -> N:
    """Returns the smallest of the values, row by row."""
    for value in values:
        if type(value) is Column:
            return _folded(np.minimum, values)
    return min(values)


def _folded(function: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    folded = raw(values[0])
    for value in values[1:]:
        folded = function(folded, raw(value))
    return Column(folded)


def ceil(value: float) -> int:
    """Returns the next whole number, in every row."""
    return math.ceil(value)


def _as(kind: Any, values: NDArray[Any]) -> Any:
    return Column(values.astype(kind))


def whole(value: float) -> int:
    """Returns the whole number before the value, towards zero, in every row."""
    given: Any = value
    return _as(np.int64, np.trunc(given.values)) if isinstance(given, Column) else int(given)


def real(value: float) -> float:
    """Returns the same value as a real number, in every row."""
    given: Any = value
    return _as(np.float64, given.values) if isinstance(given, Column) else float(given)


def root(value: float) -> float:
    """Returns the square root, in every row."""
    given: Any = value
    return _as(np.float64, np.sqrt(given.values)) if isinstance(given, Column) else math.sqrt(given)


def where(condition: Callable[[Any], Any], value: Any, then: Any, otherwise: Any) -> Any:
    """Returns ``then`` in the rows in which ``condition`` holds of ``value``, else ``otherwise``."""
    if not isinstance(value, Column):
        return then if condition(value) else otherwise
    return Column(np.where(condition(value.values), raw(then), raw(otherwise)))


def per_row(function: Callable[..., float], *values: float) -> float:
    """Returns ``function`` of plain numbers for every row, called once for each combination of numbers."""
    if not are_columns(*values):
        return function(*values)
    cells = np.stack(np.broadcast_arrays(*map(raw, values)), axis=1)
    distinct, inverse = np.unique(cells, axis=0, return_inverse=True)
    result: Any = Column(np.array([function(*row) for row in distinct.tolist()])[inverse.reshape(-1)])
    return result  # type: ignore[no-any-return]


def each_row(function: Callable[[NDArray[np.float64]], NDArray[np.float64]], value: Any) -> Any:
    """Returns ``function`` of an array for every row, called once for all rows."""
    result = function(np.asarray(raw(value), np.float64))
    return Column(result) if isinstance(value, Column) else float(result)


def area(shapes: Iterable[tuple[float, float]]) -> float:
    """Returns the elements of matrices of these shapes (rows, columns), those of one shape counted once: row by row, since
    layouts disagree about which are alike."""
    given = tuple(shapes)
    if not are_columns(*chain.from_iterable(given)):
        return sum(height * width for height, width in dict.fromkeys(given))
    cells = np.array(np.broadcast_arrays(*map(raw, chain.from_iterable(given))))
    heights, widths = cells[::2], cells[1::2]
    order = np.lexsort((widths, heights), axis=0)
    heights, widths = np.take_along_axis(heights, order, 0), np.take_along_axis(widths, order, 0)
    again = (np.diff(heights, axis=0) == 0) & (np.diff(widths, axis=0) == 0)
    counted_once: float = column((heights * widths).sum(axis=0) - (heights[1:] * widths[1:] * again).sum(axis=0))
    return counted_once


def column(values: Sequence[Any] | NDArray[Any]) -> Any:
    """Returns one number for each row: the plain number where all are alike."""
    cells = np.asarray(values)
    return cells[0].item() if (cells == cells[0]).all() else Column(cells)


def part(value: T, chosen: Rows) -> T:
    """Returns the ``chosen`` rows of a column, or of every column inside a tuple or a dataclass, however deep."""
    chosen_part: Any = value
    if isinstance(value, Column):
        chosen_part = column(value.values[chosen]) if value.values.ndim == 1 else Column(value.values[chosen])
    elif isinstance(value, tuple):
        parts = [each if type(each) in _PLAIN else part(each, chosen) for each in value]
        if any(new is not old for new, old in zip(parts, value, strict=True)):
            chosen_part = type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    elif is_dataclass(value):
        fields_of = ((name, getattr(value, name)) for name in names_of(type(value)))  # type: ignore[arg-type]
        changed = {n: new for n, old in fields_of if type(old) not in _PLAIN and (new := part(old, chosen)) is not old}
        chosen_part = replace(value, **changed) if changed else value  # type: ignore[type-var]
    return chosen_part  # type: ignore[no-any-return]


def height(values: Iterable[Any]) -> int:
    """Returns the rows of the columns among ``values``, 1 where there are none."""
    return next((len(value.values) for value in values if type(value) is Column), 1)


def total(values: Iterable[N]) -> N:
    """Returns the sum of the values, row by row."""
    given = list(values)
    if (number := height(given)) == 1:
        return sum(given)
    cells = np.empty((len(given), number))
    for place, value in enumerate(given):
        cells[place] = raw(value)
    return column(cells.sum(axis=0))  # type: ignore[no-any-return]


def rows(value: Any, number: int) -> NDArray[np.float64]:
    """Returns ``[number]``: the values of every row."""
    return np.broadcast_to(np.asarray(raw(value), np.float64), (number,))


def table(cells: Sequence[Sequence[Any]], number: int) -> NDArray[np.float64]:
    """Returns ``[fields, operators · number]``: the fields of each operator (``cells``), each with a value for every row."""
    if number == 1:
        return np.array(cells, np.float64).reshape(len(cells), -1).T
    filled = np.empty((len(cells[0]) if cells else 0, len(cells), number))
    for place, given in enumerate(cells):
        for field, value in enumerate(given):
            filled[field, place] = raw(value)
    return filled.reshape(len(filled), -1)


def trace(build: Callable[[Rows], T], number: int) -> Iterator[tuple[Rows, T]]:
    """Yields groups of the rows 0 … ``number`` − 1 that take the same branches, each with what ``build`` makes of it.

    ``build`` gets row numbers, makes columns of their sizes, and is called again for the parts of a split.
    """
    waiting = [np.arange(number)] if number else []
    while waiting:
        group = waiting.pop()
        try:
            built = build(group)
        except Split as split:
            _, labels = np.unique(split.labels, return_inverse=True)
            waiting += [group[labels == label] for label in range(labels.max() + 1)]
        else:
            yield group, built
