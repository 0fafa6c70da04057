"""Kernel times from measured tables: what was measured is returned as measured, what lies between is interpolated.

Between shapes the *ratio* of measured to modelled time is interpolated (log scale, inverse squared distance over the
nearest measured shapes of the same kernel class), so that tile quantisation and bandwidth floors come from the model
and only its error from the neighbours; the result is kept between measured neighbours that are smaller and larger in
every dimension (:mod:`projector.kernels.nearest_shapes`). Beyond :data:`REACH` of every measured shape ``measured`` is
false: the neighbours' word fades, and at twice the reach the model answers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from projector.dataclass import dataclass
from projector.hardware.types import Gpu
from projector.io.rows import grouped
from projector.kernels.nearest_shapes import Near, bounded, nearest
from projector.kernels.protocol import ComputeOp, FloatArray, KernelModel, Times
from projector.kernels.tables import Measured, read, tables_dir
from projector.memo import BoundedCache, IdentityKey
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream
from projector.parameter import parameter

_FITTED = "framework fit"  # a rate that a source states for a class of kernels: no kernel at a shape
_USUAL = parameter(
    2.0,
    unit="1/distance²",
    kind="assumed",
    source="weight of what is usual in a class, beside neighbours that weigh 1 / squared distance: as much as one at the "
    "edge of the reach",
)
_SAMPLE = 256  # measured rows, spread over a table, that stand for all of it
_ATTENTION_ALIKE = {"aiter_a32": "aiter", "asm": "aiter", "te": "cudnn"}


def available(gpu_name: str, folder: Path | None = None) -> bool:
    """Returns whether a table of this GPU exists in ``folder`` (default: the nearest ``measured/kernels``)."""
    root = folder or tables_dir()
    return root is not None and (root / gpu_name).is_dir()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Leave-one-shape-out error of one kernel class: rows, rows with a neighbour in reach, and their signed errors (n,)."""

    name: str
    rows: int
    covered: int
    errors: FloatArray

    @property
    def mape(self) -> float:
        """Returns the mean absolute error of the covered rows, NaN without any."""
        return float(np.abs(self.errors).mean()) if self.covered else float("nan")


@dataclass(frozen=True)
class _Class:
    """Measured shapes of one kernel class: operators, coordinates (r, d), seconds (r,), and the log of measured over
    modelled seconds (r,), whose median is ``usual``."""

    ops: tuple[ComputeOp, ...]
    points: FloatArray
    seconds: FloatArray
    ratio: FloatArray
    usual: float


def recorded_over(gpu: Gpu, fallback: KernelModel, alone: Callable[[], KernelModel] | None) -> Recorded:
    """Returns the model of one device over ``fallback`` (see :class:`Recorded`; ``alone`` makes its other model): one object
    for all runs that share both, so that measured rows are compared with the model once. Raises as :class:`Recorded`."""
    key = tables_dir(), IdentityKey(gpu), IdentityKey(fallback), alone is None
    return _SHARED.get(key, lambda: Recorded(gpu, fallback, alone=alone() if alone else None))


_SHARED: BoundedCache[Recorded] = BoundedCache(64)


class Recorded:
    """Measured tables of ``gpu`` with ``fallback`` between and beyond the measured shapes.

    When ``fallback`` states an ``execution`` (as ``Simulated`` does), rows of its kernel families are preferred;
    attention of another family counts as not measured. ``alone``: the same model of kernels that are timed by
    themselves; what short runs gain by that is taken off the measured times, so that they stand for the clock that a
    training step sustains. Raises ``InputError`` if a table cannot be read.
    """

    name = "recorded"

    def __init__(
        self, gpu: Gpu, fallback: KernelModel, folder: Path | None = None, alone: KernelModel | None = None
    ) -> None:
        root = folder or tables_dir()
        self._alone = alone
        self._classes: dict[Hashable, _Class | None] = {}
        self.gpu = gpu
        self.fallback = fallback
        self._folder = None if root is None else root / gpu.name
        execution = getattr(fallback, "execution", None)
        attention = None if execution is None else execution.kernels.attention
        # frameworks name kernel families of GPUs; a CPU has the one of its library
        named = attention if gpu.vendor != "cpu" else None
        self._attention = _ATTENTION_ALIKE.get(named, named) if named else None
        self._gemm = None if execution is None else execution.kernels.gemm

    def times(self, ops: Sequence[ComputeOp]) -> Times:
        """Returns the seconds (n,) and whether measured shapes stand behind each (n,)."""
        seconds = self.fallback.times(ops).seconds.copy()
        measured = np.zeros(len(ops), dtype=np.bool_)
        places = grouped((_key(op), i) for i, op in enumerate(ops))
        for key, where in places.items():
            data = self._class(key)
            if data is None:
                continue
            wanted = _points(ops[i] for i in where)
            near = nearest(data.points, wanted)
            index = np.array(where)
            seconds[index] = _corrected(seconds[index], data, near, wanted)
            measured[index] = near.reached
        return Times(seconds, measured)

    def leave_one_shape_out(self) -> tuple[LeftOut, ...]:
        """Returns each measured shape predicted by the others of its class: the interpolation error of these tables."""
        out = []
        for key in _by_class(self._folder) if self._folder is not None else ():
            data = self._class(key)
            if data is None or len(data.ops) < 2:
                continue
            modelled = self.fallback.times(data.ops).seconds
            near = nearest(data.points, data.points, leave_out_same=True)
            errors = _corrected(modelled, data, near, data.points) / data.seconds - 1.0
            name = " ".join(str(word) for word in key if word != "") if isinstance(key, tuple) else str(key)
            reached = near.reached
            out.append(LeftOut(name, len(data.ops), int(reached.sum()), errors[reached]))
        return tuple(out)

    def _class(self, key: Hashable) -> _Class | None:
        if key not in self._classes:
            rows = () if self._folder is None else _rows(self._folder, key, self._gemm, self._attention)
            self._classes[key] = self._against_the_model(rows) if rows else None
        return self._classes[key]

    def _against_the_model(self, rows: Sequence[Measured]) -> _Class:
        ops = [row.op for row in rows]
        modelled = self.fallback.times(ops).seconds
        seconds = np.array([row.seconds for row in rows])
        if self._alone is not None:
            seconds = seconds * (modelled / self._alone.times(ops).seconds)
        ratio = np.log(seconds / modelled)
        spread = np.unique(np.linspace(0, len(ops) - 1, min(len(ops), _SAMPLE)).astype(np.intp))
        return _Class(tuple(ops), _points(ops), seconds, ratio, float(np.median(ratio[spread])))


def _corrected(modelled: FloatArray, data: _Class, near: Near, wanted: FloatArray) -> FloatArray:
    """Returns modelled seconds (n,) corrected by the neighbours' ratio of measured to modelled time, drawn to the usual
    ratio of the class as far as neighbours are few or distant."""
    pull = np.where(near.exact, 0.0, _USUAL)
    total = (near.weights * data.ratio[near.rows]).sum(axis=1) + pull * data.usual
    mean = total / np.maximum(near.weights.sum(axis=1) + pull, 1e-300)
    return bounded(modelled * np.exp(near.trust * mean), near, data.points, wanted, data.seconds)


@cache
def _by_class(folder: Path) -> Mapping[Hashable, tuple[Measured, ...]]:
    found: dict[Hashable, list[Measured]] = {}
    for row in read(folder):
        if row.condition == _FITTED:
            continue
        found.setdefault(_key(row.op), []).append(row)
    return {key: tuple(rows) for key, rows in found.items()}


def _rows(folder: Path, key: Hashable, gemm: str | None, attention: str | None) -> Sequence[Measured]:
    """Returns the measured rows of a class, only those of the families that run if there are any."""
    rows = _by_class(folder).get(key, ())
    if rows and isinstance(rows[0].op, Attention):
        return [row for row in rows if attention is None or row.family == attention]
    return [row for row in rows if gemm is not None and row.family == gemm] or rows


def _key(op: ComputeOp) -> Hashable:
    """Returns the kernel class within which shapes may speak for each other."""
    if isinstance(op, Stream):
        return ("stream", op.kind)
    dtype = "bf16" if op.dtype == "fp16" else op.dtype
    if isinstance(op, Attention):
        return ("attention", dtype, op.backward, op.causal, op.window, op.head_dim_qk, op.head_dim_v, op.flash)
    scaling = "" if op.scaling == op.dtype else op.scaling
    kind = ("gemm",) if isinstance(op, Gemm) else ("grouped", op.backend)
    return (*kind, dtype, scaling, op.layout, op.accumulate, op.out_bytes)


def _points(ops: Iterable[ComputeOp]) -> FloatArray:
    """Returns the log coordinates of the shapes of one class, (n, 4)."""
    return np.log(np.array([_coordinates(op) for op in ops], dtype=np.float64))


def _coordinates(op: ComputeOp) -> tuple[float, float, float, float]:
    if isinstance(op, Gemm):
        return (op.m, op.n, op.k, op.batch)
    if isinstance(op, GroupedGemm):
        # the time of one expert hardly depends on others
        return (max(op.rows, 1) / op.groups, op.n, op.k, op.groups**0.25)
    if isinstance(op, Attention):
        return (op.batch * op.heads, op.seq_q, op.seq_k, (op.heads / op.kv_heads) ** 0.25)
    total = max(op.bytes, 1.0)
    # a rate hardly changes over a factor of ten in bytes; from one way to both ways it does by some percent
    return (total**0.25, float(np.exp(min(op.read, op.write) / total)), max(op.launches, 1), 1.0)
