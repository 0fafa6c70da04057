"""Kernel times from measured tables: what was measured is returned as measured, what lies between is interpolated.

Between shapes the *ratio* of measured to modelled time is interpolated (log scale, inverse squared distance over the
nearest measured shapes of the same kernel class), so that tile quantisation and bandwidth floors come from the model
and only its error from the neighbours. Beyond :data:`REACH` of every measured shape the model answers alone and
``measured`` is false.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from projector.hardware.types import Gpu
from projector.kernels.protocol import BoolArray, ComputeOp, FloatArray, KernelModel, Times
from projector.kernels.tables import Measured, read, tables_dir
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream

__all__ = ["REACH", "LeftOut", "Recorded", "available"]

#: Natural-log distance between shapes up to which a neighbour speaks for a shape: one dimension doubled (ln 2).
#: Leaving one shape out, it covers 78-100 % of the larger GEMM tables at errors of 1.6-12 % (see measured/kernels).
REACH = 0.7
_NEIGHBOURS = 8
#: Squared distance below which neighbours weigh alike: measured tables scatter by some percent between equal kernels,
#: so the nearest one must not decide alone. A shape that was measured itself is returned as measured.
_NUGGET = 0.15**2
_SAME = 1e-12
_ATTENTION_ALIKE = {"aiter_a32": "aiter", "asm": "aiter", "te": "cudnn"}


def available(gpu_name: str, folder: Path | None = None) -> bool:
    """Whether a table of this GPU exists in ``folder`` (default: the nearest ``measured/kernels``)."""
    root = folder or tables_dir()
    return root is not None and (root / gpu_name).is_dir()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Leave-one-shape-out error of one kernel class: rows, rows that had a neighbour in reach, and their signed
    errors (n,).
    """

    name: str
    rows: int
    covered: int
    errors: FloatArray
    flops: FloatArray

    @property
    def mape(self) -> float:
        """Mean absolute error of the covered rows, NaN when none was."""
        return float(np.abs(self.errors).mean()) if self.covered else float("nan")


@dataclass(frozen=True)
class _Class:
    """Measured shapes of one kernel class: operators, coordinates (r, d) and seconds (r,)."""

    ops: tuple[ComputeOp, ...]
    points: FloatArray
    seconds: FloatArray


class Recorded:
    """Measured tables of ``gpu`` with ``fallback`` between and beyond the measured shapes.

    When ``fallback`` states an ``execution`` (as ``Simulated`` does), rows of its kernel families are preferred;
    attention of another family counts as not measured. Raises ``InputError`` if a table cannot be read.
    """

    name = "recorded"

    def __init__(self, gpu: Gpu, fallback: KernelModel, folder: Path | None = None) -> None:
        root = folder or tables_dir()
        self.gpu = gpu
        self.fallback = fallback
        self._folder = None if root is None else root / gpu.name
        execution = getattr(fallback, "execution", None)
        attention = None if execution is None else execution.attention_family
        self._attention = _ATTENTION_ALIKE.get(attention, attention) if attention else None
        self._gemm = None if execution is None else execution.gemm_family
        self._known: dict[ComputeOp, tuple[float, bool]] = {}

    def times(self, ops: Sequence[ComputeOp]) -> Times:
        """Seconds (n,) and whether measured shapes stand behind each (n,). Streams are never measured."""
        missing = list(dict.fromkeys(op for op in ops if op not in self._known))
        if missing:
            seconds, measured = self._evaluate(missing)
            self._known.update(zip(missing, zip(seconds.tolist(), measured.tolist(), strict=True), strict=True))
        found = [self._known[op] for op in ops]
        return Times(np.array([s for s, _ in found], dtype=np.float64), np.array([m for _, m in found], dtype=np.bool_))

    def leave_one_shape_out(self) -> tuple[LeftOut, ...]:
        """Each measured shape predicted by the others of its class: the error of interpolating in these tables."""
        out = []
        for key in _by_class(self._folder) if self._folder is not None else ():
            data = self._class(key)
            if data is None or len(data.ops) < 2:
                continue
            modelled = self.fallback.times(data.ops).seconds
            near = _neighbours(data.points, data.points, exclude_same=True)
            errors = modelled * np.exp(self._ratios(data, near)) / data.seconds - 1.0
            flops = np.array([0.0 if isinstance(op, Stream) else op.flops for op in data.ops])
            out.append(
                LeftOut(str(key), len(data.ops), int(near.reached.sum()), errors[near.reached], flops[near.reached])
            )
        return tuple(out)

    def _evaluate(self, ops: Sequence[ComputeOp]) -> tuple[FloatArray, BoolArray]:
        seconds = self.fallback.times(ops).seconds.copy()
        measured = np.zeros(len(ops), dtype=np.bool_)
        places: dict[Hashable, list[int]] = {}
        for i, op in enumerate(ops):
            places.setdefault(_key(op), []).append(i)
        for key, where in places.items():
            data = self._class(key)
            if data is None:
                continue
            near = _neighbours(data.points, _points(ops[i] for i in where))
            index = np.array(where)[near.reached]
            seconds[index] *= np.exp(self._ratios(data, near)[near.reached])
            measured[index] = True
        return seconds, measured

    def _class(self, key: Hashable) -> _Class | None:
        return None if self._folder is None else _prepared(self._folder, key, self._gemm, self._attention)

    def _ratios(self, data: _Class, near: _Near) -> FloatArray:
        """Log of measured over modelled time at each wanted point (n,): only rows that someone needs are modelled."""
        used, place = np.unique(near.rows, return_inverse=True)
        modelled = self.fallback.times([data.ops[i] for i in used]).seconds
        ratio = np.log(data.seconds[used] / modelled)[place.reshape(near.rows.shape)]
        total = near.weights.sum(axis=1)
        mean: FloatArray = (near.weights * ratio).sum(axis=1) / np.where(total > 0.0, total, 1.0)
        return mean


@cache
def _by_class(folder: Path) -> Mapping[Hashable, tuple[Measured, ...]]:
    found: dict[Hashable, list[Measured]] = {}
    for row in read(folder):
        found.setdefault(_key(row.op), []).append(row)
    return {key: tuple(rows) for key, rows in found.items()}


@cache
def _prepared(folder: Path, key: Hashable, gemm: str | None, attention: str | None) -> _Class | None:
    rows = _by_class(folder).get(key, ())
    if rows and isinstance(rows[0].op, Attention):
        rows = tuple(row for row in rows if attention is None or row.family == attention)
    elif gemm is not None:
        rows = tuple(row for row in rows if row.family == gemm) or rows
    if not rows:
        return None
    ops = tuple(row.op for row in rows)
    return _Class(ops, _points(ops), np.array([row.seconds for row in rows]))


def _key(op: ComputeOp) -> Hashable:
    """The kernel class within which shapes may speak for each other."""
    if isinstance(op, Stream):
        return ("stream",)
    dtype = "bf16" if op.dtype == "fp16" else op.dtype
    if isinstance(op, Attention):
        return ("attention", dtype, op.backward, op.causal, op.window, op.head_dim_qk, op.head_dim_v, op.flash)
    scaling = "" if op.scaling == op.dtype else op.scaling
    kind = "gemm" if isinstance(op, Gemm) else f"grouped {op.backend}"
    return (kind, dtype, scaling, op.layout, op.accumulate, op.out_bytes)


def _points(ops: Iterable[ComputeOp]) -> FloatArray:
    """Log coordinates of the shapes of one class, (n, 4)."""
    return np.log(np.array([_coordinates(op) for op in ops], dtype=np.float64))


def _coordinates(op: ComputeOp) -> tuple[float, float, float, float]:
    if isinstance(op, Gemm):
        return (op.m, op.n, op.k, op.batch)
    if isinstance(op, GroupedGemm):
        return (max(op.rows, 1) / op.groups, op.n, op.k, op.groups)
    if isinstance(op, Attention):
        return (op.batch * op.heads, op.seq_q, op.seq_k, (op.heads / op.kv_heads) ** 0.25)
    return (1.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class _Near:
    """The nearest measured rows of each wanted point (n, j), their weights (n, j), and whether one is in reach (n,)."""

    rows: npt.NDArray[np.intp]
    weights: FloatArray
    reached: BoolArray


def _neighbours(points: FloatArray, wanted: FloatArray, exclude_same: bool = False) -> _Near:
    kept = _within(points, wanted)
    if not len(kept):
        empty = np.zeros((len(wanted), 1))
        return _Near(np.zeros(empty.shape, dtype=np.intp), empty, np.zeros(len(wanted), dtype=np.bool_))
    count = min(_NEIGHBOURS, len(kept))
    rows = np.empty((len(wanted), count), dtype=np.intp)
    squared = np.empty((len(wanted), count))
    chunk = max(1, 4_000_000 // len(kept))
    for start in range(0, len(wanted), chunk):
        part = slice(start, start + chunk)
        rows[part], squared[part] = _nearest(points[kept], wanted[part], count, exclude_same)
    closest = squared.min(axis=1)
    exact = closest < _SAME
    weights = np.where(exact[:, None], squared < _SAME, 1.0 / (squared + _NUGGET))
    weights[squared > 4.0 * REACH**2] = 0.0
    return _Near(kept[rows], weights, closest <= REACH**2)


def _within(points: FloatArray, wanted: FloatArray) -> npt.NDArray[np.intp]:
    """Rows that can matter: within twice the reach of some wanted point in the second and third coordinate."""
    cells = np.unique(wanted[:, 1:3], axis=0)
    if len(cells) > 64:
        return np.arange(len(points))
    apart = np.abs(points[:, None, 1:3] - cells[None]).max(axis=2).min(axis=1)
    return np.flatnonzero(apart <= 2.0 * REACH)


def _nearest(
    points: FloatArray, wanted: FloatArray, count: int, exclude_same: bool
) -> tuple[npt.NDArray[np.intp], FloatArray]:
    squared = np.zeros((len(wanted), len(points)))
    for axis in range(wanted.shape[1]):
        squared += (wanted[:, axis, None] - points[None, :, axis]) ** 2
    if exclude_same:
        squared[squared < _SAME] = np.inf
    chosen = np.argpartition(squared, count - 1, axis=1)[:, :count]
    return chosen, np.take_along_axis(squared, chosen, axis=1)
