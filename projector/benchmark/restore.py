"""Timed layers put back into the whole run: kernels of a layer that was timed take its time in the projected step.

Every kernel of a timed part is corrected by live over simulated time of that part (a kernel that several parts share,
by their sums; products of experts whatever their rows); what no part holds, such as the optimizer, stays as the kernel
model says. Schedule, communication, host and the rest of a step are those of the projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from projector.benchmark.live import Compared
from projector.kernels.protocol import ComputeOp, KernelModel, Times
from projector.operators.types import GroupedGemm

__all__ = ["Timed"]


class Timed:
    """``base`` corrected by the factors of timed parts; kernels of those parts count as measured."""

    name = "live"

    def __init__(self, rows: Sequence[Compared], base: KernelModel) -> None:
        self._base = base
        self._factors = _factors(rows)

    def times(self, ops: Sequence[ComputeOp]) -> Times:
        """Seconds (n,), and whether a timed layer stands behind each (n,)."""
        base = self._base.times(ops)
        found = [self._factors.get(_plain(op)) for op in ops]
        factors = np.array([1.0 if factor is None else factor for factor in found])
        measured = np.array([factor is not None for factor in found], dtype=np.bool_)
        return Times(base.seconds * factors, base.measured | measured)


def _factors(rows: Sequence[Compared]) -> dict[ComputeOp, float]:
    live: dict[ComputeOp, float] = {}
    ours: dict[ComputeOp, float] = {}
    for row in rows:
        total = sum(seconds for _, seconds in row.kernels)
        if row.live is None or total <= 0:
            continue
        factor = row.live.seconds / total
        for op, seconds in row.kernels:
            key = _plain(op)
            weight = seconds * row.count
            live[key] = live.get(key, 0.0) + factor * weight
            ours[key] = ours.get(key, 0.0) + weight
    return {key: live[key] / ours[key] for key in ours if ours[key] > 0}


def _plain(op: ComputeOp) -> ComputeOp:
    """What two kernels share that a factor is good for: all but the name, and the rows that routing happens to give."""
    if isinstance(op, GroupedGemm):
        return replace(op, name="", rows=0, rows_per_group=None)
    return replace(op, name="")
