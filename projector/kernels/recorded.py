"""Kernel times from measured tables: what was measured is returned as measured, what lies between is interpolated.

Between shapes the *ratio* of measured to modelled time is interpolated (log scale, inverse squared distance over the
nearest measured shapes of the same kernel class), so that tile quantisation and bandwidth floors come from the model
and only its error from the neighbours. Beyond :data:`REACH` of every measured shape the model answers alone and
``measured`` is false.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

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


@dataclass(frozen=True, slots=True)
class _Class:
    """Measured shapes of one kernel class: coordinates (r, d), log(measured/modelled) (r,) and work (r,)."""

    points: FloatArray
    ratios: FloatArray
    flops: FloatArray


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
        rows = _rows(root / gpu.name) if root is not None else ()
        self._by_class: dict[Hashable, list[Measured]] = {}
        for row in rows:
            self._by_class.setdefault(_key(row.op), []).append(row)
        self._classes: dict[Hashable, _Class | None] = {}
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
        for key in self._by_class:
            data = self._class(key)
            if data is None or len(data.ratios) < 2:
                continue
            guess, near = _interpolate(data, data.points, exclude_same=True)
            errors = np.exp(guess - data.ratios) - 1.0
            out.append(LeftOut(str(key), len(near), int(near.sum()), errors[near], data.flops[near]))
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
            ratio, near = _interpolate(data, _points(ops[i] for i in where))
            index = np.array(where)[near]
            seconds[index] *= np.exp(ratio[near])
            measured[index] = True
        return seconds, measured

    def _class(self, key: Hashable) -> _Class | None:
        if key not in self._classes:
            rows = self._preferred(self._by_class.get(key, []))
            self._classes[key] = self._prepared(rows) if rows else None
        return self._classes[key]

    def _prepared(self, rows: Sequence[Measured]) -> _Class:
        modelled = self.fallback.times([row.op for row in rows]).seconds
        measured = np.array([row.seconds for row in rows])
        flops = np.array([0.0 if isinstance(row.op, Stream) else row.op.flops for row in rows])
        return _Class(_points(row.op for row in rows), np.log(measured / modelled), flops)

    def _preferred(self, rows: Sequence[Measured]) -> Sequence[Measured]:
        execution = getattr(self.fallback, "execution", None)
        if execution is None or not rows:
            return rows
        if isinstance(rows[0].op, Attention):
            wanted = _ATTENTION_ALIKE.get(execution.attention_family, execution.attention_family)
            return [row for row in rows if row.family == wanted]
        return [row for row in rows if row.family == execution.gemm_family] or rows


@cache
def _rows(folder: Path) -> tuple[Measured, ...]:
    return read(folder)


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


def _interpolate(data: _Class, wanted: FloatArray, exclude_same: bool = False) -> tuple[FloatArray, BoolArray]:
    """Log ratio at the wanted points (n,), and whether a measured shape is within reach of each (n,)."""
    ratios = np.zeros(len(wanted))
    near = np.zeros(len(wanted), dtype=np.bool_)
    chunk = max(1, 4_000_000 // len(data.ratios))
    for start in range(0, len(wanted), chunk):
        part = slice(start, start + chunk)
        ratios[part], near[part] = _nearest(data, wanted[part], exclude_same)
    return ratios, near


def _nearest(data: _Class, wanted: FloatArray, exclude_same: bool) -> tuple[FloatArray, BoolArray]:
    squared = np.zeros((len(wanted), len(data.ratios)))
    for axis in range(wanted.shape[1]):
        squared += (wanted[:, axis, None] - data.points[None, :, axis]) ** 2
    if exclude_same:
        squared[squared < 1e-12] = np.inf
    count = min(_NEIGHBOURS, squared.shape[1])
    chosen = np.argpartition(squared, count - 1, axis=1)[:, :count] if count < squared.shape[1] else None
    distance = squared if chosen is None else np.take_along_axis(squared, chosen, axis=1)
    values = np.broadcast_to(data.ratios, squared.shape) if chosen is None else data.ratios[chosen]
    closest = distance.min(axis=1)
    exact = closest < 1e-12
    weight = np.where(exact[:, None], distance < 1e-12, 1.0 / (distance + _NUGGET))
    weight[distance > 4.0 * REACH**2] = 0.0
    total = weight.sum(axis=1)
    ratio = (weight * values).sum(axis=1) / np.where(total > 0.0, total, 1.0)
    return ratio, closest <= REACH**2
