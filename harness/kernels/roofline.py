"""Two baselines that know no kernels: the larger of FLOP over a share of the peak and bytes over a share of bandwidth.

``fixed``: 0.6 of the peak and 0.8 of the bandwidth for everything. ``fitted``: both shares and a start time, three
constants for each GPU, kind of kernel and operand type, cross-validated like the models.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.kernels.fit import Array, folds_of
from harness.kernels.grouping import group_of
from harness.kernels.schema import Row
from projector.hardware.catalogue import gpu as catalogue_gpu
from projector.kernels.traffic import unique_bytes

# Assumed shares of a rule of thumb, to be beaten; they describe no device.
PEAK_SHARE, MEMORY_SHARE = 0.6, 0.8
FEWEST_GROUPS = 5
ROWS = 4000


def fixed(rows: Sequence[Row]) -> Array:
    """Seconds of each row, (n,), by the rule of thumb."""
    compute, memory = _limits(rows)
    return np.maximum(compute / PEAK_SHARE, memory / MEMORY_SHARE)


def fitted(rows: Sequence[Row]) -> Array:
    """Seconds of each row, (n,), each by constants that saw no row of its group; NaN where groups are too few."""
    out = np.full(len(rows), np.nan)
    alike: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(rows):
        alike.setdefault((row.gpu, row.kind, row.dtype, row.scaling), []).append(i)
    for members in alike.values():
        where = np.array(members)
        few = [rows[i] for i in members]
        fold = folds_of([group_of(row) for row in few])
        if len({group_of(row) for row in few}) < FEWEST_GROUPS:
            continue
        compute, memory = _limits(few)
        times = np.array([row.measured.seconds for row in few])
        for number in range(fold.max() + 1):
            kept, left = fold != number, fold == number
            constants = _solve(compute[kept], memory[kept], times[kept])
            out[where[left]] = _law(constants, compute[left], memory[left])
    return out


def _limits(rows: Sequence[Row]) -> tuple[Array, Array]:
    """Seconds at the peak and at full bandwidth, each (n,)."""
    compute, memory = np.zeros(len(rows)), np.zeros(len(rows))
    for i, row in enumerate(rows):
        device = catalogue_gpu(row.gpu)
        compute[i] = row.flops / device.peak_of(row.dtype) if row.flops else 0.0
        memory[i] = sum(map(unique_bytes, row.ops)) / device.memory_bandwidth
    return compute, memory


def _law(constants: Array, compute: Array, memory: Array) -> Array:
    peak, bandwidth, start = np.exp(constants)
    result: Array = np.maximum(compute / peak, memory / bandwidth) + start
    return result


def _solve(compute: Array, memory: Array, times: Array) -> Array:
    from scipy.optimize import least_squares

    if len(times) > ROWS:
        chosen = np.random.default_rng(1).choice(len(times), ROWS, replace=False)
        compute, memory, times = compute[chosen], memory[chosen], times[chosen]
    found = least_squares(
        lambda x: np.log(_law(x, compute, memory) / times),
        np.log([PEAK_SHARE, MEMORY_SHARE, 5e-6]),
        bounds=(np.log([0.01, 0.01, 1e-7]), np.log([1.0, 1.0, 1e-3])),
        loss="soft_l1",
        f_scale=0.05,
        max_nfev=60,
    )
    return np.asarray(found.x)
