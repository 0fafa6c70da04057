"""Grouped GEMM of local experts: every expert's tiles padded to the macro-tile, all weights once, a cost per expert.

For an expert with products C and traffic B at the memory's rate, ``max(C, B) + (1 - overlap)·min(C, B)``: an expert
starts on weights that no cache holds, so little of its traffic hides behind products. Experts issued apart (``loop``,
``multi_stream``) pay this one by one, each with the tail of its own last round of tiles; with several streams, experts
too small for the device share it. A ``fused`` kernel draws the tiles of all experts from one pool. The weight
gradient reduces over an expert's rows and writes (or, accumulating, reads and writes) every expert's matrix. An
expert without rows costs no product and reads no weights, but is issued. One expert is a dense product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from projector.dataclass import dataclass
from projector.hardware.types import Efficiency, Gpu
from projector.kernels import gemm
from projector.kernels.constants import Columns, distinct, element_bytes
from projector.kernels.protocol import FloatArray
from projector.kernels.tiles import tiles
from projector.operators.types import GROUPED_STREAMS, Gemm, GroupedGemm
from projector.parameter import parameter
from projector.size import table


@dataclass(frozen=True, slots=True)
class Spread:
    """Columns (e,): the operator an entry belongs to, the rows of one expert, and how many experts carry as many."""

    owner: npt.NDArray[np.intp]
    rows: FloatArray
    count: FloatArray

    def total(self, values: FloatArray, operators: int) -> FloatArray:
        """Returns the sum over the experts of each operator, (operators,), of a value per entry (e,)."""
        found = np.bincount(self.owner, weights=values * self.count, minlength=operators)
        return found.astype(np.float64, copy=False)


def flatten(ops: Sequence[GroupedGemm], number: int = 1) -> Spread:
    """Returns the loads of all operators, for ``number`` rows of columns each: experts differ by at most one row."""
    rows, groups = table([(op.rows, op.groups) for op in ops], number).astype(np.int64)
    every = np.arange(len(rows))
    base, more = np.divmod(rows, groups)
    some = more > 0
    owner, load, count = (
        np.concatenate(parts) for parts in ((every, every[some]), (base, base[some] + 1), (groups - more, more[some]))
    )
    return Spread(owner.astype(np.intp), load.astype(np.float64), count.astype(np.float64))


_LARGE = parameter(
    8192.0, kind="derived", source="a cube of this side runs at the saturated rate of its kernel class on every GPU"
)
_DEPTH = parameter(
    64.0, unit="rows", kind="derived", source="of the reduction that one iteration of a 16-bit weight gradient consumes"
)
_SMALL = parameter(
    30.0, unit="rows", kind="derived", source="dense tables: a tile's operand reads cost as much again as its products"
)
_BACKENDS = ("fused", "multi_stream", "loop")  # whose priors are apart; any other is taken for a loop over experts
_CHUNK = 16384
# macro-tiles common to cuBLASLt, hipBLASLt, CK and DeepGEMM kernel names; one compute unit owns a tile
_TILES = np.array([(64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128), (256, 256)], dtype=np.float64)
_ROWS, _COLUMNS = _TILES[:, :1], _TILES[:, 1:]
# FLOP of a tile per element of the reduction, with what tiles below 256×128 lose, (tiles, 1)
_LOSS = (1.0 + _SMALL / _ROWS + _SMALL / _COLUMNS) / (1.0 + _SMALL / 256.0 + _SMALL / 128.0)
_COST = 2.0 * _ROWS * _COLUMNS * np.maximum(_LOSS, 1.0)


@dataclass(frozen=True, slots=True)
class GroupedConstants:
    """Constants of one kernel class on one GPU; rates per second of the whole device, seconds, shares in [0, 1]."""

    rate: float  # FLOP/s of large tiles
    bandwidth: float  # bytes/s of device memory
    overlap: float  # share of the shorter of products and traffic that runs beside the longer
    waves: float  # share of whole rounds of tiles
    group: float  # each expert
    issue: float  # floor per expert at which a measured host issued them; 0 in a projection
    launch: float  # once
    units: float
    streams: float  # experts that may share the device
    pooled: float  # 1: all experts' tiles in one pool
    burst: float  # clock that a short run gains over the sustained one; 0 inside a training step
    burst_decay: float  # seconds of the whole operator over which that gain decays


def constants(gpu: Gpu, efficiency: Efficiency, family: str, op: GroupedGemm, alone: bool = False) -> GroupedConstants:
    """Returns the constants of the class of ``op``: ``grouped.loop`` is relative to a large dense product of its family.

    Keys may end in ``.<backend>``, in the layout, or in both, the more specific first. The rate stays at or below the
    peak. ``alone``: timed by itself, as kernel tables are, so that a short run has a higher clock (``grouped.burst``;
    see :func:`projector.kernels.gemm.constants`). Raises :class:`~projector.errors.Unsupported` if the GPU has no
    matrix rate for the type.
    """
    base = gemm.constants(gpu, efficiency, family, op.dtype, op.scaling, op.layout, op.accumulate)

    def value(stem: str, neutral: float | None = None) -> float:
        keys = (f"{stem}.{op.backend}.{op.layout}", f"{stem}.{op.layout}", f"{stem}.{op.backend}", stem)
        found = next((efficiency[key] for key in keys if key in efficiency.parameters), neutral)
        return efficiency[f"{stem}.{op.backend if op.backend in _BACKENDS else 'loop'}"] if found is None else found

    side = np.array([_LARGE])
    nothing = np.array([1e-9])
    cube = gemm.GemmShapes(side, side, side, side / side, nothing, nothing, side / side)
    catalogue = tiles(gpu.arch, family, op.dtype, op.scaling)
    dense = 2.0 * _LARGE**3 / float(gemm.seconds(cube, [base], np.zeros(1, dtype=np.intp), catalogue)[0])
    memory = value("grouped.memory", base.bandwidth / gpu.memory_bandwidth)
    rate = min(dense * value("grouped.loop", 1.0), gpu.peak_of(op.dtype))
    return GroupedConstants(
        rate=rate,
        bandwidth=gpu.memory_bandwidth * min(memory, 1.0),
        overlap=min(max(value("grouped.overlap"), 0.0), 1.0),
        waves=min(max(value("grouped.waves"), 0.0), 1.0),
        group=value("grouped.group_us") * 1e-6,
        issue=efficiency.get(f"grouped.issue_us.{op.backend}", 0.0) * 1e-6,
        launch=base.launch,
        units=base.units,
        streams=float(GROUPED_STREAMS) if op.backend == "multi_stream" else 1.0,
        pooled=float(op.backend == "fused"),
        burst=max(min(value("grouped.burst", 0.0), gpu.peak_of(op.dtype) / rate - 1.0), 0.0) if alone else 0.0,
        burst_decay=value("grouped.burst_us", efficiency["grouped.burst_us"]) * 1e-6,
    )


def as_gemm(op: GroupedGemm) -> Gemm:
    """Returns the dense product that one expert of ``op`` with all its rows would be."""
    m, n, k = (op.n, op.k, op.rows) if op.layout == "NT" else (op.rows, op.n, op.k)
    return Gemm(
        op.name,
        m,
        n,
        k,
        dtype=op.dtype,
        scaling=op.scaling,
        layout=op.layout,
        out_bytes=op.out_bytes,
        accumulate=op.accumulate,
    )


def seconds(ops: Sequence[GroupedGemm], classes: Sequence[GroupedConstants], number: int = 1) -> FloatArray:
    """Returns the seconds of each operator, (n · number,) where sizes have ``number`` rows, by its class's constants."""
    if not ops:
        return np.zeros(0)
    kinds, index = distinct(classes)
    out = np.empty((len(ops), number))
    each = max(1, _CHUNK // number)
    for start in range(0, len(ops), each):
        part = slice(start, start + each)
        columns = Columns(kinds, np.repeat(index[part], number))
        out[part] = _chunk(ops[part], columns, number).reshape(-1, number)
    return out.reshape(-1)


def _chunk(ops: Sequence[GroupedGemm], c: Columns, number: int) -> FloatArray:
    cells = [(o.groups, o.n, o.k, element_bytes(o.dtype), o.out_bytes, o.accumulate, o.layout == "NT") for o in ops]
    groups, *columns = table(cells, number)
    spread, count = flatten(ops, number), len(groups)
    at = spread.owner
    n, k, size, out_bytes, accumulate, gradient = (column[at] for column in columns)
    # the bytes that one expert reads and writes, (e,): its rows, and its weights or their gradient once. An empty expert
    # reads nothing, and writes a gradient of zeros unless it accumulates
    busy = spread.rows > 0.0
    forward = spread.rows * (k * size + n * out_bytes) + n * k * size * busy
    backward = spread.rows * (n + k) * size + n * k * out_bytes * np.where(accumulate > 0.0, 2.0 * busy, 1.0)
    traffic = np.where(gradient > 0.0, backward, forward) / c.bandwidth[at]
    grid, depth = _grid(spread.rows, n, k, gradient > 0.0)
    products = _apart(grid, depth, c.units[at], c.streams[at], c.waves[at])
    pool = np.flatnonzero(c.pooled)
    pooled = _pooled(spread, grid, depth, count, c)[pool] if len(pool) else np.zeros(0)

    def device(rate: FloatArray) -> FloatArray:
        took = spread.total(_beside(products / rate[at], traffic, c.overlap[at]), count)
        if len(pool):
            took[pool] = _beside(pooled / rate[pool], spread.total(traffic, count)[pool], c.overlap[pool])
        return took

    took = device(c.rate)
    if c.burst.any():
        took = device(c.rate * (1.0 + c.burst * np.exp(-took / c.burst_decay)))
    total: FloatArray = c.launch + np.maximum(took + groups * c.group, groups * c.issue)
    return total


def _grid(
    rows: FloatArray, n: FloatArray, k: FloatArray, gradient: npt.NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray]:
    """Returns the tiles of one expert, (tiles, e), and the padded reduction that each of them runs through, (e,)."""
    high, wide = np.where(gradient, n, rows), np.where(gradient, k, n)
    grid = np.ceil(high / _ROWS) * np.ceil(wide / _COLUMNS)
    return grid, np.where(gradient, np.ceil(rows / _DEPTH) * _DEPTH, k)


def _apart(
    grid: FloatArray, depth: FloatArray, units: FloatArray, streams: FloatArray, waves: FloatArray
) -> FloatArray:
    """Returns the FLOP that the device could have done while one expert has it, (e,): each expert takes its best tile."""
    exact = grid / units
    rounds = waves * np.ceil(exact) + (1.0 - waves) * np.maximum(exact, 1.0 / streams)
    spent: FloatArray = (rounds * _COST).min(axis=0) * units * depth * (grid[0] > 0.0)
    return spent


def _pooled(spread: Spread, grid: FloatArray, depth: FloatArray, count: int, c: Columns) -> FloatArray:
    """Returns the same for all experts' tiles in one pool, (n,): one tile for the whole kernel."""
    spent = []
    for tiles_each, cost in zip(grid, _COST[:, 0], strict=True):
        total, work = spread.total(tiles_each, count), spread.total(tiles_each * depth, count)
        exact = np.maximum(total, 1.0) / c.units
        rounds = c.waves * np.ceil(exact) + (1.0 - c.waves) * np.maximum(exact, 1.0)
        spent.append(rounds / exact * work * cost)
    best: FloatArray = np.min(spent, axis=0)
    return best


def _beside(products: FloatArray, traffic: FloatArray, overlap: FloatArray) -> FloatArray:
    """Returns the seconds of both, with a share of the shorter hidden behind the longer."""
    both: FloatArray = np.maximum(products, traffic) + (1.0 - overlap) * np.minimum(products, traffic)
    return both
