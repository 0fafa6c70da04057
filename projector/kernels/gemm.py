"""Tile-level time of dense matrix products, over arrays of shapes.

The law is Origami's, closed to a few constants per kernel class (AMD Origami: ROCm/rocm-libraries shared/origami):

    t = launch + max(min over tiles and splits of waves·(fill + k_iterations·c) + exposed·output traffic, all traffic)

``c`` is the tile's FLOP over the instruction rate of the units that it occupies at the sustained clock, ``waves``
blends whole and fractional waves (libraries hide tails with Stream-K and persistent kernels), traffic is unique bytes
at the device memory's rate; an accumulating product reads its output as well. Nothing can beat the peak or the memory
bandwidth: every share is at most one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import numpy as np

from projector.hardware.types import Efficiency, Gpu
from projector.kernels.constants import element_bytes, pick
from projector.kernels.protocol import FloatArray
from projector.kernels.tiles import Catalogue, k_tile_bytes

__all__ = ["GemmConstants", "GemmShapes", "constants", "seconds"]

_SPLITS = (2.0, 4.0, 8.0, 16.0)
_REFERENCE_AREA = 65536.0  # derived: the 256×256 tile that the prologue constant is stated for
_CHUNK = 16384


@dataclass(frozen=True, slots=True)
class GemmConstants:
    """Constants of one kernel class on one GPU. Rates per second of the whole device; times in seconds; shares in (0,
    1].
    """

    rate: float  # FLOP/s inside the main loop of the largest tile
    bandwidth: float  # bytes/s of device memory
    prologue: float  # of a 256×256 tile: fill, store, drain
    prologue_floor: float  # of a vanishing tile
    launch: float  # device time of an empty kernel
    waves: float  # share of whole-wave quantisation
    small_tile: float  # rows at which a tile's operand reads cost as much again as its products
    exposed: float  # share of the output traffic that the main loop does not hide
    k_tile: float  # elements
    units: float


@dataclass(frozen=True, slots=True)
class GemmShapes:
    """Columns of equal length (n,): C[m,n] = A[m,k]·B[k,n], ``batch`` times; bytes per element; ``writes`` 2 if C is
    read too.
    """

    m: FloatArray
    n: FloatArray
    k: FloatArray
    batch: FloatArray
    operand_bytes: FloatArray
    out_bytes: FloatArray
    writes: FloatArray


def constants(
    gpu: Gpu, efficiency: Efficiency, family: str, dtype: str, scaling: str, layout: str, accumulate: bool
) -> GemmConstants:
    """Constants of a kernel class; parameters ``gemm.*`` of the efficiency file, defaults stated in the vendor's
    file.

    Raises ``KeyError`` if the GPU has no matrix rate for the type.
    """

    def value(stem: str, default: float) -> float:
        return pick(efficiency, stem, family, dtype, scaling, default)

    share = min(value("clock.matrix", 0.85), 1.0) * min(value("gemm.loop", 0.9), 1.0)
    share *= min(efficiency.get(f"gemm.layout.{layout}", 1.0), 1.0)
    if accumulate:
        share *= min(efficiency.get("gemm.accumulate", 1.0), 1.0)
    return GemmConstants(
        rate=gpu.peak_of(dtype) * share,
        bandwidth=gpu.memory_bandwidth * min(value("gemm.memory", 0.85), 1.0),
        prologue=value("gemm.prologue_us", 4.0) * 1e-6,
        prologue_floor=value("gemm.prologue_floor_us", 0.5) * 1e-6,
        launch=value("gemm.launch_us", 3.0) * 1e-6,
        waves=min(max(value("gemm.waves", 0.4), 0.0), 1.0),
        small_tile=value("gemm.small_tile", 16.0),
        exposed=min(value("gemm.exposed", 0.3), 1.0),
        k_tile=max(k_tile_bytes(gpu.arch) / 2.0 ** round(log2(element_bytes(dtype))), 16.0),  # scales apart
        units=float(gpu.compute_units),
    )


def seconds(shapes: GemmShapes, classes: list[GemmConstants], index: np.ndarray, catalogue: Catalogue) -> FloatArray:
    """Seconds of every shape, (n,). ``index`` (n,) says which of ``classes`` a shape belongs to."""
    table = np.array([_row(c) for c in classes])
    out = np.empty(len(shapes.m))
    for start in range(0, len(out), _CHUNK):
        part = slice(start, start + _CHUNK)
        piece = GemmShapes(*(getattr(shapes, f)[part] for f in GemmShapes.__dataclass_fields__))
        out[part] = _chunk(piece, table[index[part]], catalogue)
    return out


def _row(c: GemmConstants) -> tuple[float, ...]:
    return tuple(getattr(c, f) for f in GemmConstants.__dataclass_fields__)


def _chunk(s: GemmShapes, values: FloatArray, catalogue: Catalogue) -> FloatArray:
    rate, bandwidth, prologue, floor, launch, waves, small, exposed, k_tile, units = (
        column[:, None] for column in values.T
    )
    m, n, k, batch = s.m[:, None], s.n[:, None], s.k[:, None], s.batch[:, None]
    grid = np.ceil(m / catalogue.rows) * np.ceil(n / catalogue.columns) * batch
    slots = np.floor(units / catalogue.units)
    fill = floor + prologue * catalogue.area / _REFERENCE_AREA
    starve = 1.0 + small * (1.0 / catalogue.rows + 1.0 / catalogue.columns)
    full = 1.0 + small * 2.0 / 256.0
    products = 2.0 * catalogue.rows * catalogue.columns * k_tile * slots / rate * np.maximum(starve / full, 1.0)
    steps = np.ceil(k / k_tile)
    loop = _waves(grid, slots, waves) * (fill + steps * products)
    best = loop.min(axis=1)
    output = s.m * s.n * s.batch
    deep = (grid.min(axis=1) < 1.5 * units[:, 0]) & (steps[:, 0] >= 8)
    if deep.any():
        parts = (grid[deep], slots[deep], waves[deep], fill[deep], steps[deep], products[deep])
        best[deep] = np.minimum(best[deep], _split(*parts, output[deep] * 8.0 / bandwidth[deep, 0]))
    unique = (s.m * s.k + s.n * s.k) * s.batch * s.operand_bytes + output * s.out_bytes * s.writes
    traffic = unique / bandwidth[:, 0]
    tail = exposed[:, 0] * output * s.out_bytes * s.writes / bandwidth[:, 0]
    total: FloatArray = launch[:, 0] + np.maximum(best + tail, traffic)
    return total


def _waves(grid: FloatArray, slots: FloatArray, share: FloatArray) -> FloatArray:
    """Rounds of tiles: ``share`` of whole waves, the rest fractional, never below one."""
    exact = np.maximum(grid / slots, 1.0)
    return share * np.ceil(grid / slots) + (1.0 - share) * exact


def _split(
    grid: FloatArray,
    slots: FloatArray,
    share: FloatArray,
    fill: FloatArray,
    steps: FloatArray,
    products: FloatArray,
    exchange: FloatArray,
) -> FloatArray:
    """Best time with the reduction split over several units: each extra part writes and reads an fp32 partial."""
    best = np.full(len(grid), np.inf)
    for parts in _SPLITS:
        deep = np.ceil(steps / parts)
        loop = _waves(grid * parts, slots, share) * (fill + deep * products)
        best = np.minimum(best, loop.min(axis=1) + 2e-6 + parts * exchange)
    return best
