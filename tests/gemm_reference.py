"""The GEMM law written one shape, one tile and one split at a time: the outside truth for the vectorised model."""

import math

from projector.kernels.gemm import GemmConstants
from projector.kernels.tiles import Catalogue

SPLITS = (1, 2, 4, 8, 16)


def seconds(
    m: float, n: float, k: float, batch: float, out_bytes: float, writes: float, c: GemmConstants, found: Catalogue
) -> float:
    """Seconds of C[m,n] = A[m,k]·B[k,n], ``batch`` times, as ``projector.kernels.gemm`` states the law."""
    columns = (found.rows, found.columns, found.depth, found.units)
    tiles = list(zip(*(column[:, 0].tolist() for column in columns), strict=True))
    stored = m * n * batch * out_bytes * writes
    loaded = (m + n) * k * batch * c.k_bytes
    grids = [math.ceil(m / r) * math.ceil(n / w) * batch for r, w, _, _ in tiles]
    best = math.inf
    for grid, (rows, columns_, depth, units) in zip(grids, tiles, strict=True):
        slots = c.units // units
        area, edge = rows * columns_ / units / 65536, (rows + columns_) / units / 512
        element = 2 * 65536 * c.units / c.rate
        reference = 128 / 2 ** round(math.log2(c.k_bytes))
        shared = (1 - c.perimeter) * area + c.perimeter * edge
        step = element * max(depth * shared + c.iteration * reference, depth * area)
        for parts in SPLITS:
            full = grid * parts / slots
            rounds = c.waves * math.ceil(full) + (1 - c.waves) * max(full, 1.0)
            fill = c.prologue_floor + c.prologue * area
            loop = rounds * (fill + math.ceil(math.ceil(k / depth) / parts) * step)
            if parts > 1:
                loop += c.split + parts * m * n * batch * c.split_bytes / c.bandwidth
            best = min(best, loop)
    device = best + (c.exposed * stored + c.cold * loaded) / c.bandwidth
    device /= 1 + c.burst * math.exp(-device / c.burst_decay)
    return c.launch + max(device, (loaded + stored) / c.bandwidth)
