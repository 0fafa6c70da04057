"""How many blocks the work-groups of an attention kernel execute: exact sums in closed form, for arrays of shapes.

A work-group owns ``rows`` consecutive positions of its own side (queries forward, keys backward) and takes blocks of
``columns`` positions of the other side. A position sees a band of the other side, so the tile that starts at ``i·rows``
meets the positions ``[i·rows + low, end + high)``, clipped to the sequence. The block counts are differences of floors
of arithmetic progressions; their sums need no enumeration (Graham, Knuth, Patashnik, Concrete Mathematics, 3.5: the
Euclidean recursion of Σ⌊(a·i + b)/m⌋, a handful of steps for tile sizes).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from projector.dataclass import dataclass
from projector.kernels.protocol import FloatArray

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one head of one sequence, arrays (n,): tiles, blocks of all tiles, blocks of the longest tile."""

    groups: FloatArray
    blocks: FloatArray
    longest: FloatArray


def floor_sum(count: IntArray, step: IntArray, start: IntArray, divisor: IntArray) -> IntArray:
    """Σ over i in [0, count) of ⌊(step·i + start)/divisor⌋ for whole numbers ``step, start ≥ 0``, ``divisor ≥ 1``.

    ``count`` ≤ 0 gives 0. Arrays (n,) of equal shape. The loop is over Euclid's algorithm, not over shapes.
    """
    total: IntArray = np.zeros_like(count)
    sign = np.ones_like(count)
    n, a, b, m = np.maximum(count, 0), step, start, divisor
    while True:
        total = total + sign * (n * (n - 1) // 2 * (a // m) + n * (b // m))
        a, b = a % m, b % m
        top = (a * n + b) // m  # values that the reduced progression reaches
        if not top.any():
            return total
        # Σ_{i<n} ⌊(ai+b)/m⌋ = n·top − Σ_{j<top} ⌊(m·j + m − b + a − 1)/a⌋ ; tiles without a remainder drop out
        total = total + sign * n * top
        sign = -sign
        a_safe = np.where(top > 0, a, 1)
        n, a, b, m = top, np.where(top > 0, m, 0), np.where(top > 0, m - b + a - 1, 0), a_safe


def work(
    own: FloatArray, other: FloatArray, rows: FloatArray, columns: FloatArray, low: FloatArray, high: FloatArray
) -> Work:
    """Tiles and blocks of one head. ``own``, ``other``: lengths of the two sides; ``low`` ≤ ``high``: the band.

    All arrays (n,) of whole numbers; ``-inf``/``inf`` for a side without a bound. A tile that sees nothing takes no
    block. The longest tile is exact for full and causal masks and at most one block high under a window.
    """
    r, c, q, s = (np.asarray(x, dtype=np.int64) for x in (rows, columns, own, other))
    a = np.clip(low, -q, s).astype(np.int64)  # beyond either end the band covers the whole side
    b = np.clip(high, -q, s).astype(np.int64)
    tiles = -(-q // r)
    whole = -(-s // c)
    last = tiles - 1
    # ends: nothing seen before tile `empty`, then a rising end, the whole other side from tile `full` on
    empty = np.clip(-b // r, 0, last)
    full = np.clip(-((b - s) // r) - 1, empty, last)
    rising = full - empty
    first = (empty + 1) * r + b + c - 1
    ends = floor_sum(rising, r, np.where(rising > 0, first, 0), c) + (last - full) * whole
    ends += -(-np.clip(q + b, 0, s) // c)
    # starts: zero up to tile `kept`, then rising
    kept = np.clip(-(a // r), 0, tiles)
    moving = tiles - kept
    starts = floor_sum(moving, r, np.where(moving > 0, kept * r + a, 0), c)
    reach = np.maximum(-(-np.clip(q + b, 0, s) // c) - np.maximum(a, 0) // c, 0)
    longest = np.minimum(reach, -(-(np.minimum(r, q) + b - a) // c) + 1)
    return Work(tiles.astype(np.float64), (ends - starts).astype(np.float64), longest.astype(np.float64))
