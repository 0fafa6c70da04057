"""Tile-level time of dense matrix products, over arrays of shapes.

The law is Origami's, closed to a few constants per kernel class (AMD Origami: ROCm/rocm-libraries shared/origami):

    t = launch + max(min over tiles and splits of waves·(fill + k_iterations·c) + exposed·output traffic, all traffic)

``c``, one main-loop iteration of a tile, has a part that grows with the tile's area (the products, at the instruction
rate and the sustained clock), one that grows with its perimeter (operand reads, which starve small tiles) and a fixed
one (barriers, loop overhead); ``waves`` blends whole and fractional rounds of tiles, since libraries hide tails with
Stream-K and persistent kernels; a reduction that is split over several units exchanges fp32 partials. Traffic is unique
bytes at the device memory's rate; an accumulating product reads its output as well. Nothing can beat the peak or the
memory bandwidth: every share is at most one, and no iteration is shorter than its products.
"""

from __future__ import annotations

import numpy as np

from projector.dataclass import dataclass
from projector.hardware.types import Efficiency, Gpu
from projector.kernels.constants import Columns, element_bytes, pick
from projector.kernels.protocol import FloatArray
from projector.kernels.tiles import Catalogue

_SPLITS = (2.0, 4.0, 8.0, 16.0)
_REFERENCE_AREA = 65536.0  # the 256×256 tile that prologue and iteration constants are stated for
_REFERENCE_BYTES = 128.0  # K bytes of one operand row per iteration, what the fixed part is stated against
_CHUNK = 2048


@dataclass(frozen=True, slots=True)
class GemmConstants:
    """Constants of one kernel class on one GPU. Rates per second of the whole device; seconds; shares in [0, 1]."""

    rate: float  # FLOP/s of the products of the largest tile's main loop
    bandwidth: float  # bytes/s of device memory
    prologue: float  # of a 256×256 tile: fill, store, drain
    prologue_floor: float  # of a vanishing tile
    launch: float  # device time of an empty kernel
    waves: float  # share of whole-wave quantisation
    perimeter: float  # share of a 256×256 iteration that grows with the tile's perimeter instead of its area
    iteration: float  # fixed part of every iteration, in iterations of a 256×256 tile of 128 bytes
    exposed: float  # share of the output traffic that the main loop does not hide
    cold: float  # share of the operands' first read that it does not hide
    split: float  # seconds of the second pass of a split reduction
    split_bytes: float  # bytes of device memory traffic per partial sum that it exchanges
    burst: float  # clock that a short run gains over the sustained one; 0 inside a training step
    burst_decay: float  # seconds of a product's own time over which that gain decays
    k_bytes: float  # bytes of one operand element
    units: float


@dataclass(frozen=True, slots=True)
class GemmShapes:
    """Columns (n,): C[m,n] = A[m,k]·B[k,n], ``batch`` times; bytes per element; ``writes`` 2 if C is read too."""

    m: FloatArray
    n: FloatArray
    k: FloatArray
    batch: FloatArray
    operand_bytes: FloatArray
    out_bytes: FloatArray
    writes: FloatArray


def constants(
    gpu: Gpu,
    efficiency: Efficiency,
    family: str,
    dtype: str,
    scaling: str,
    layout: str,
    accumulate: bool,
    alone: bool = False,
) -> GemmConstants:
    """Returns the constants of a kernel class; parameters ``gemm.*`` of the efficiency file, priors in ``gpu.yaml``.

    ``alone``: the product is timed by itself, a few repetitions in a row, as kernel tables are. A power limit acts over
    milliseconds, so a short one then runs above the clock that a training step sustains (``gemm.burst``).

    Raises :class:`~projector.errors.Unsupported` if the GPU has no matrix rate for the type.
    """

    def value(stem: str, neutral: float | None = None) -> float:
        return pick(efficiency, stem, family, dtype, scaling, neutral)

    def share(stem: str) -> float:
        return min(max(value(stem), 0.0), 1.0)

    clock = share("clock.matrix")
    rate = clock * share("gemm.loop")
    rate *= min(efficiency.get(f"gemm.layout.{layout}", 1.0), 1.0)
    if accumulate:
        rate *= min(efficiency.get("gemm.accumulate", 1.0), 1.0)
    return GemmConstants(
        rate=gpu.peak_of(dtype) * rate,
        bandwidth=gpu.memory_bandwidth * share("gemm.memory"),
        prologue=value("gemm.prologue_us") * 1e-6,
        prologue_floor=value("gemm.prologue_floor_us") * 1e-6,
        launch=value("gemm.launch_us") * 1e-6,
        waves=share("gemm.waves"),
        perimeter=share("gemm.perimeter"),
        iteration=value("gemm.iteration"),
        exposed=share("gemm.exposed"),
        cold=share("gemm.cold"),
        split=value("gemm.split_us") * 1e-6,
        split_bytes=value("gemm.split_bytes"),
        burst=min(value("gemm.burst", 0.0), 1.0 / clock - 1.0) if alone else 0.0,
        burst_decay=value("gemm.burst_us") * 1e-6,
        k_bytes=element_bytes(dtype),
        units=float(gpu.compute_units),
    )


def seconds(shapes: GemmShapes, classes: list[GemmConstants], index: np.ndarray, catalogue: Catalogue) -> FloatArray:
    """Returns the seconds of every shape, (n,). ``index`` (n,) says which of ``classes`` a shape belongs to."""
    constants_of = Columns(classes, index if len(classes) > 1 else index[:1])
    count = len(shapes.m)
    out = np.empty(count)
    for start in range(0, count, _CHUNK):
        part = slice(start, start + _CHUNK)
        piece = GemmShapes(*(getattr(shapes, f)[part] for f in GemmShapes.__dataclass_fields__))
        out[part] = _chunk(piece, constants_of.at(part), catalogue)
    return out


def _chunk(s: GemmShapes, c: Columns, catalogue: Catalogue) -> FloatArray:
    grid = np.ceil(s.m / catalogue.rows)
    grid *= np.ceil(s.n / catalogue.columns)
    grid *= s.batch
    steps = np.ceil(s.k / catalogue.depth)
    slots = np.floor(c.units / catalogue.units)
    fill = c.prologue_floor + c.prologue * catalogue.area
    each = _iteration(c, catalogue)
    best = _rounds(grid, slots, c.waves, fill + steps * each).min(axis=0)
    output = s.m * s.n * s.batch
    # no split beats its products spread evenly plus its exchange: most shapes need no further look
    apart = c.split + _SPLITS[0] * output * c.split_bytes / c.bandwidth
    deep = (grid / slots * steps * each).min(axis=0) + apart < best
    if deep.any():
        some = c.at(deep)
        where = (fill, each, slots) if len(c.rate) == 1 else (fill[:, deep], each[:, deep], slots[:, deep])
        exchange = output[deep] * some.split_bytes / some.bandwidth
        best[deep] = np.minimum(best[deep], _split(grid[:, deep], steps[:, deep], *where, some, exchange))
    stored = output * s.out_bytes * s.writes
    loaded = (s.m + s.n) * s.k * s.batch * s.operand_bytes
    shown = (c.exposed * stored + c.cold * loaded) / c.bandwidth
    device = best + shown
    if c.burst.any():
        device /= 1.0 + c.burst * np.exp(-device / c.burst_decay)
    total: FloatArray = c.launch + np.maximum(device, (loaded + stored) / c.bandwidth)
    return total


def _iteration(c: Columns, tile: Catalogue) -> FloatArray:
    """Returns the seconds of one main-loop iteration of each tile, (tiles, n); never less than its products need."""
    element = 2.0 * _REFERENCE_AREA * c.units / c.rate  # a 256×256 tile, one element of K
    shared = (1.0 - c.perimeter) * tile.area + c.perimeter * tile.perimeter
    # depth counts elements whose scales travel apart: half-byte types take 256 of them for the reference's 128 bytes
    reference = _REFERENCE_BYTES / 2.0 ** np.round(np.log2(c.k_bytes))
    whole: FloatArray = element * np.maximum(tile.depth * shared + c.iteration * reference, tile.depth * tile.area)
    return whole


def _rounds(grid: FloatArray, slots: FloatArray, share: FloatArray, each: FloatArray) -> FloatArray:
    """Returns rounds of tiles times the seconds of one: ``share`` of whole rounds, the rest fractional, at least one."""
    exact = grid / slots
    whole = np.ceil(exact)
    whole *= share
    np.maximum(exact, 1.0, out=exact)
    exact *= 1.0 - share
    whole += exact
    whole *= each
    return whole


def _split(
    grid: FloatArray,
    steps: FloatArray,
    fill: FloatArray,
    each: FloatArray,
    slots: FloatArray,
    c: Columns,
    exchange: FloatArray,
) -> FloatArray:
    """Returns the best time with the reduction split over several units: each writes a partial sum that is read again."""
    best = np.full(grid.shape[1], np.inf)
    for parts in _SPLITS:
        loop = _rounds(grid * parts, slots, c.waves, fill + np.ceil(steps / parts) * each)
        np.minimum(best, loop.min(axis=0) + c.split + parts * exchange, out=best)
    return best
