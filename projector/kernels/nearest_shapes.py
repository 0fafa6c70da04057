"""Nearest measured shapes of wanted ones in log coordinates: which they are, their weights, the bounds they set."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from projector.dataclass import dataclass
from projector.kernels.protocol import BoolArray, FloatArray
from projector.parameter import parameter

#: Natural-log distance between shapes up to which a neighbour speaks for a shape.
REACH = parameter(
    0.7,
    unit="ln",
    kind="derived",
    source="one dimension doubled (ln 2); leaving one shape out, it covers 78-100 % of the larger GEMM tables at errors of "
    "1.6-12 % (measured/kernels)",
)
_SPEAK = 8  # nearest shapes whose errors are averaged
_BOUND = 16  # nearest shapes whose times bound an interpolated one
#: Distance below which neighbours weigh alike. A shape that was measured itself is returned as measured.
_NUGGET = parameter(
    0.15,
    unit="ln",
    kind="assumed",
    source="measured tables scatter by some percent between equal kernels, so the nearest one must not decide alone",
)
_SAME = 1e-12
#: Scatter of measured tables between like shapes: nearer than this two times are no contradiction.
_NOISE = parameter(
    0.05, kind="derived", source="AITER and SimuMax rows of equal shapes differ by 2-7 %", low=0.02, high=0.07
)
_TREE = 20_000_000  # pairs of measured and wanted shapes above which a search tree pays (measured: 0.2 s of pairs)


@dataclass(frozen=True, slots=True)
class Near:
    """The nearest measured rows of each wanted point (n, j), closest first; their weights (n, j); whether one is in reach
    (n,); the ``trust`` in them (n,): 1 in reach, fading to 0 at twice the reach; whether one is at the same place (n,)."""

    rows: npt.NDArray[np.intp]
    weights: FloatArray
    reached: BoolArray
    trust: FloatArray
    exact: BoolArray


def nearest(points: FloatArray, wanted: FloatArray, leave_out_same: bool = False) -> Near:
    """Returns the neighbours of ``wanted`` (n, d) among ``points`` (r, d), without equal ones if ``leave_out_same``."""
    kept = _within(points, wanted)
    if not len(kept):
        empty = np.zeros((len(wanted), 1))
        nobody = np.zeros(len(wanted))
        return Near(np.zeros(empty.shape, dtype=np.intp), empty, nobody > 0.0, nobody, nobody > 0.0)
    rows, squared = _search(points[kept], wanted, leave_out_same)
    closest = squared[:, 0]
    weights = np.where(closest[:, None] < _SAME, squared < _SAME, 1.0 / (squared + _NUGGET**2))
    weights[:, _SPEAK:] *= closest[:, None] < _SAME
    weights[squared > 4.0 * REACH**2] = 0.0
    trust = np.clip(2.0 - np.sqrt(np.minimum(closest, 1e6)) / REACH, 0.0, 1.0)
    return Near(kept[rows], weights, closest <= REACH**2, trust, closest < _SAME)


def bounded(times: FloatArray, near: Near, points: FloatArray, wanted: FloatArray, measured: FloatArray) -> FloatArray:
    """Returns ``times`` (n,) kept between the ``measured`` (r,) neighbours that are smaller and larger in every coordinate.

    Work is monotone: beyond the scatter of the table no shape is faster than a smaller one that was measured, nor
    slower than a larger one. Where the neighbours contradict each other, and at shapes measured themselves, times stay.
    """
    some = near.weights[:, 0] > 0.0
    low, high = np.zeros(len(times)), np.full(len(times), np.inf)
    for j in range(near.rows.shape[1]):
        apart = wanted - points[near.rows[:, j]]
        close = np.abs(apart).max(axis=1) <= 2.0 * REACH
        took = measured[near.rows[:, j]]
        low = np.maximum(low, np.where(close & (apart >= -1e-9).all(axis=1), took, 0.0))
        high = np.minimum(high, np.where(close & (apart <= 1e-9).all(axis=1), took, np.inf))
    low, high = low / (1.0 + _NOISE), high * (1.0 + _NOISE)
    kept: FloatArray = np.where((low <= high) & ~near.exact & some, np.clip(times, low, np.maximum(low, high)), times)
    return kept


def _within(points: FloatArray, wanted: FloatArray) -> npt.NDArray[np.intp]:
    """Returns the rows that can matter: within twice the reach of a wanted point in the second and third coordinate."""
    cells = np.unique(wanted[:, 1:3], axis=0)
    if len(cells) > 64:
        return np.arange(len(points))
    apart = np.abs(points[:, None, 1:3] - cells[None]).max(axis=2).min(axis=1)
    return np.flatnonzero(apart <= 2.0 * REACH)


def _search(points: FloatArray, wanted: FloatArray, leave_out_same: bool) -> tuple[npt.NDArray[np.intp], FloatArray]:
    """Returns the closest points of each wanted one and their squared distances, (n, j) each, closest first."""
    count = min(_BOUND, len(points))
    tree = _tree(points) if len(points) * len(wanted) > _TREE and not leave_out_same else None
    if tree is not None:
        distance, rows = tree.query(wanted, k=count)
        return rows.reshape(len(wanted), count), distance.reshape(len(wanted), count) ** 2
    rows = np.empty((len(wanted), count), dtype=np.intp)
    squared = np.empty((len(wanted), count))
    chunk = max(1, 4_000_000 // len(points))
    for start in range(0, len(wanted), chunk):
        part = slice(start, start + chunk)
        rows[part], squared[part] = _by_pairs(points, wanted[part], count, leave_out_same)
    return rows, squared


def _tree(points: FloatArray) -> Any:
    """Returns a k-d tree, None without SciPy, which is imported here since recorded tables alone need it."""
    try:
        from scipy.spatial import cKDTree
    except ImportError:
        return None
    return cKDTree(points)


def _by_pairs(
    points: FloatArray, wanted: FloatArray, count: int, leave_out_same: bool
) -> tuple[npt.NDArray[np.intp], FloatArray]:
    squared = np.zeros((len(wanted), len(points)))
    for axis in range(wanted.shape[1]):
        squared += (wanted[:, axis, None] - points[None, :, axis]) ** 2
    if leave_out_same:
        squared[squared < _SAME] = np.inf
    chosen = np.argpartition(squared, count - 1, axis=1)[:, :count]
    order = np.argsort(np.take_along_axis(squared, chosen, axis=1), axis=1, kind="stable")
    chosen = np.take_along_axis(chosen, order, axis=1)
    return chosen, np.take_along_axis(squared, chosen, axis=1)
