"""Weights of rows and cells, and medians and quantiles under them. Pure functions of arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def by_cell(cells: Iterable[Hashable]) -> Array:
    """Returns weights under which every cell weighs one."""
    cells = list(cells)
    count = Counter(cells)
    return np.array([1.0 / count[cell] for cell in cells])


def means(values: ArrayLike, cells: Iterable[Hashable]) -> Array:
    """Returns the mean inside each cell, of at least one value, in the order in which cells appear."""
    places: dict[Hashable, int] = {}
    at = [places.setdefault(cell, len(places)) for cell in cells]
    return np.asarray(np.bincount(at, np.asarray(values, dtype=float)) / np.bincount(at), dtype=np.float64)


def macro(values: ArrayLike, cells: Iterable[Hashable]) -> float:
    """Returns the mean over cells of the mean inside each, of at least one value."""
    return float(np.mean(means(values, cells)))


def median(values: ArrayLike, weights: ArrayLike) -> float:
    """Returns the value with half of the weight on each side (the mean of two where the half falls between them)."""
    x, w = np.asarray(values, dtype=float), np.asarray(weights, dtype=float)
    order = np.argsort(x, kind="stable")
    x, cumulated = x[order], np.cumsum(w[order])
    half, tolerance = cumulated[-1] / 2, 1e-9 * cumulated[-1]
    low = int(np.searchsorted(cumulated, half - tolerance))
    high = int(np.searchsorted(cumulated, half + tolerance))
    return float((x[low] + x[min(high, len(x) - 1)]) / 2)


def quantile(values: Array, weights: Array, level: float) -> float:
    """Returns the least value at or below which a share ``level`` of the weight lies (NumPy's ``inverted_cdf``)."""
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(int(np.searchsorted(share, level - 1e-12)), len(values) - 1)])
