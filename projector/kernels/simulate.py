"""Kernel times without a device: the analytical models behind the kernel protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass
from projector.hardware.types import Efficiency, Gpu
from projector.io.rows import grouped as grouped_by
from projector.kernels import attention, gemm, grouped, stream
from projector.kernels.attention_constants import windowed
from projector.kernels.constants import element_bytes
from projector.kernels.protocol import ComputeOp, FloatArray, Times
from projector.kernels.tiles import tiles
from projector.mechanisms import Execution
from projector.mechanisms.attention_kernels import UNFUSED, choose
from projector.memo import BoundedCache, IdentityKey
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream
from projector.size import real, rows, table


@dataclass(frozen=True, slots=True)
class _Products:
    """Dense products of one type: their places in the list, an operator of each class, and the class index of each."""

    places: NDArray[np.intp]
    classes: tuple[Gemm, ...]
    which: NDArray[np.intp]
    shapes: gemm.GemmShapes


@dataclass(frozen=True, slots=True)
class Arranged:
    """A list of operators, sorted for the models; nothing of it depends on a device's constants. ``others``: places and
    operators by the name of what prices them."""

    size: int
    number: int
    products: tuple[_Products, ...]
    others: Mapping[str, tuple[list[int], list[Any]]]


def arrange(ops: Sequence[ComputeOp], number: int = 1) -> Arranged:
    """Returns the operators sorted for :meth:`Simulated.arranged`, once for the same list under many constants.
    ``number``: rows of the columns (:mod:`projector.size`) that stand for sizes."""
    dense: list[tuple[int, Gemm]] = []
    others: dict[str, tuple[list[int], list[Any]]] = {}
    for i, op in enumerate(ops):
        if isinstance(op, Gemm):
            dense.append((i, op))
            continue
        if isinstance(op, Attention):
            word = "selected" if op.keys is not None else "flash" if op.flash else "plain"
        else:
            word = "routed" if isinstance(op, GroupedGemm) else "streams"
        places, some = others.setdefault(word, ([], []))
        places.append(i)
        some.append(op)
    return Arranged(len(ops), number, _products(dense, number), others)


def _products(dense: Sequence[tuple[int, Gemm]], number: int) -> tuple[_Products, ...]:
    made = []
    for found in grouped_by(((op.dtype, op.scaling), (i, op)) for i, op in dense).values():
        index: dict[tuple[object, ...], int] = {}
        which = [index.setdefault(_class_key(op), len(index)) for _, op in found]
        first = {number: op for number, (_, op) in zip(reversed(which), reversed(found), strict=True)}
        cells = [
            (o.m, o.n, o.k, o.batch, element_bytes(o.dtype), o.out_bytes, 2.0 if o.accumulate else 1.0)
            for _, o in found
        ]
        made.append(
            _Products(
                np.array([i for i, _ in found]),
                tuple(first[number] for number in range(len(index))),
                np.repeat(which, number),
                gemm.GemmShapes(*table(cells, number)),
            )
        )
    return tuple(made)


def _class_key(op: Gemm | GroupedGemm) -> tuple[str, str, str, bool]:
    return (op.dtype, op.scaling, op.layout, op.accumulate)


class Simulated:
    """Analytical device times on ``gpu`` with ``efficiency``, by the kernel families of ``execution``. Pure.

    ``alone``: products timed by themselves, as in kernel tables, not inside a training step (see ``gemm.constants``).
    """

    name = "simulate"

    def __init__(self, gpu: Gpu, efficiency: Efficiency, execution: Execution, alone: bool = False) -> None:
        self.gpu = gpu
        self.efficiency = efficiency
        self.execution = execution
        self.alone = alone
        self._gemm_classes: BoundedCache[gemm.GemmConstants] = BoundedCache(1024)
        self._grouped_classes: BoundedCache[grouped.GroupedConstants] = BoundedCache(1024)
        self._attention_classes: BoundedCache[attention.AttentionConstants] = BoundedCache(1024)

    def times(self, ops: Sequence[ComputeOp]) -> Times:
        """Returns the seconds of each operator, (n,); none is measured. Raises ``KeyError`` for a type without a rate."""
        return Times(self.arranged(arrange(ops)), np.zeros(len(ops), dtype=np.bool_))

    def arranged(self, given: Arranged) -> FloatArray:
        """Returns the same seconds for a list that :func:`arrange` sorted."""
        found = self._together(given)
        return found[:, 0] if given.number == 1 else found

    def columns(self, ops: Sequence[ComputeOp], number: int) -> FloatArray:
        """Returns the seconds of operators whose sizes are columns with ``number`` rows, (ops, number)."""
        return self._together(arrange(ops, number))

    def _together(self, given: Arranged) -> FloatArray:
        number = given.number
        out = np.zeros((given.size, number))
        for products in given.products:
            first = products.classes[0]
            classes = [self._gemm_class(op) for op in products.classes]
            catalogue = tiles(self.gpu.arch, self.execution.kernels.gemm, first.dtype, first.scaling)
            out[products.places] = gemm.seconds(products.shapes, classes, products.which, catalogue).reshape(-1, number)
        for word, (places, ops) in given.others.items():
            out[places] = getattr(self, f"_{word}")(ops, number)
        return out

    def _streams(self, ops: Sequence[Stream], number: int) -> FloatArray:
        return stream.seconds(ops, self.gpu, self.efficiency, number).reshape(-1, number)

    def _selected(self, ops: Sequence[Attention], number: int) -> FloatArray:
        return np.array([rows(selected_seconds(op, self.gpu, self.efficiency), number) for op in ops])

    def _plain(self, ops: Sequence[Attention], number: int) -> FloatArray:
        return np.array([self.columns(attention.materialised(op), number).sum(axis=0) for op in ops])

    def _routed(self, ops: Sequence[GroupedGemm], number: int) -> FloatArray:
        """Prices one expert as a dense product and the cost of its group, several by the grouped model. ``(ops,
        number)``."""
        classes = [self._grouped_class(op) for op in ops]
        out = grouped.seconds(ops, classes, number).reshape(-1, number)
        one = [i for i, op in enumerate(ops) if op.groups == 1 and op.rows > 0]
        if one:
            alone = self.columns([grouped.as_gemm(ops[i]) for i in one], number)
            group, issue = np.array([(classes[i].group, classes[i].issue) for i in one]).T[..., None]
            out[one] = np.maximum(alone + group, issue)
        return out

    def _flash(self, ops: Sequence[Attention], number: int) -> FloatArray:
        """Prices each operator by the kernel that the stack runs for it; a table names the kernel that ran."""
        kernels = self.execution.kernels
        if self.alone:
            chosen = [(kernels.attention, op) for op in ops]
        else:
            chosen = [choose(kernels.attention, kernels.built, self.gpu.arch, op) for op in ops]
        chosen = [(f, op if windowed(f, op.dtype, op.backward) else replace(op, window=None)) for f, op in chosen]
        out = np.zeros((len(ops), number))
        flash = [i for i, (family, _) in enumerate(chosen) if family != UNFUSED]
        priced = [chosen[i][1] for i in flash]
        classes = [self._attention_class(*chosen[i]) for i in flash]
        out[flash] = attention.seconds(priced, classes, number).reshape(-1, number)
        unfused = [i for i, (family, _) in enumerate(chosen) if family == UNFUSED]
        if unfused:
            out[unfused] = self._plain([chosen[i][1] for i in unfused], number)
        return out

    def _gemm_class(self, op: Gemm) -> gemm.GemmConstants:
        key, family = _class_key(op), self.execution.kernels.gemm
        return self._gemm_classes.get(key, lambda: gemm.constants(self.gpu, self.efficiency, family, *key, self.alone))

    def _grouped_class(self, op: GroupedGemm) -> grouped.GroupedConstants:
        device, key = (self.gpu, self.efficiency, self.execution.kernels.gemm), (op.backend, *_class_key(op))
        return self._grouped_classes.get(key, lambda: grouped.constants(*device, op, self.alone))

    def _attention_class(self, family: str, op: Attention) -> attention.AttentionConstants:
        key = (family, op.head_dim_qk, op.head_dim_v, op.dtype, op.backward, op.causal)
        return self._attention_classes.get(key, lambda: attention.constants(self.gpu, self.efficiency, family, op))


def shared(gpu: Gpu, efficiency: Efficiency, execution: Execution) -> Simulated:
    """Returns the model of this device, parameters and execution, with the constants that it has looked up."""
    return _shared(IdentityKey(gpu), IdentityKey(efficiency), execution)


@lru_cache(maxsize=64)
def _shared(gpu: IdentityKey[Gpu], efficiency: IdentityKey[Efficiency], execution: Execution) -> Simulated:
    return Simulated(gpu.value, efficiency.value, execution)


def selected_seconds(op: Attention, gpu: Gpu, efficiency: Efficiency) -> float:
    """Returns the seconds of one attention whose queries choose their keys; raises ``KeyError`` for a type without a rate.

    Queries gather keys of their own, so that no tile is shared between them: one group of threads loads a query, its
    output and their gradients, goes through its keys, writes and ends. Time is linear in the keys, and what is left at
    none is the traffic of the query's rows (NVIDIA/cudnn-frontend pull request 318: backward of 4096 queries of 64
    heads of 512 on SM100 in 0.56, 1.23, 2.16 and 4.02 ms for 128, 512, 1024 and 2048 keys, twice that for 128 heads).
    Shares are those of published kernels (``attention.*.selected`` of the efficiency files).
    """
    word = "backward" if op.backward else "forward"
    compute = op.flops / (gpu.peak_of(op.dtype) * efficiency[f"attention.{word}.selected"])
    queries = real(op.batch) * op.heads * op.seq_q * (op.head_dim_qk + op.head_dim_v)
    keys = real(op.batch) * op.kv_heads * op.seq_k * op.head_dim_qk
    passes = 2.0 if op.backward else 1.0
    rate = gpu.memory_bandwidth * efficiency["attention.rows.selected"]
    return compute + passes * element_bytes(op.dtype) * (queries + keys) / rate
