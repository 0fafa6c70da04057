"""Flash attention as a work list: what each work-group executes, summed in closed form, spread over the units.

A work-group owns ``rows`` queries (forward) or keys (backward) and iterates over blocks of the other side that the
mask leaves. One iteration costs the longer of its matrix products and its softmax (exponentials and vector
operations), plus the share of the shorter that the kernel does not overlap. Causal skipping is exact at block level:
short sequences execute more than half. Structure: FlashAttention-2/3/4 papers (arXiv 2307.08691, 2407.08608,
2603.05451); constants ``attention.*`` of the efficiency file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from projector.hardware.types import Efficiency, Gpu
from projector.kernels.attention_tiles import block, padded
from projector.kernels.constants import element_bytes, pick
from projector.kernels.protocol import FloatArray
from projector.operators.types import Attention

__all__ = ["AttentionConstants", "constants", "iterations", "seconds"]

_VECTOR_OPS = {
    False: 8.0,
    True: 12.0,
}  # per score beside the exponential: scale, mask, max, sum, cast; backward adds dP−δ, ·P
_LANE_FLOPS = 2.0  # arithmetic: a fused multiply-add counts two in the data sheet's vector rate


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """One attention kernel (family, dtype, head dimensions, direction) on one GPU. Seconds per block and per
    work-group.
    """

    rows: float
    columns: float
    iteration: float
    prologue: float
    launch: float
    waves: float
    units: float
    bandwidth: float
    atomic: float  # seconds per element of dQ and key block, beyond what the loop hides


def constants(gpu: Gpu, efficiency: Efficiency, family: str, op: Attention) -> AttentionConstants:
    """Constants of the kernel that would run ``op``. Raises ``KeyError`` if the GPU has no matrix rate for the type."""
    way = "backward" if op.backward else "forward"

    def value(stem: str, default: float) -> float:
        return pick(efficiency, f"attention.{way}.{stem}", family, op.dtype, f"d{op.head_dim_qk}", default)

    qk, v = padded(op.head_dim_qk), padded(op.head_dim_v)
    shape = block(family, max(qk, v), op.backward)
    scores = float(shape.rows * shape.columns)
    clock = min(efficiency.get("clock.attention", efficiency.get("clock.matrix", 0.85)), 1.0)
    units = float(gpu.compute_units)
    depth = 3 * qk + 2 * v if op.backward else qk + v
    matrix = 2.0 * scores * depth * units / (gpu.peak_of(op.dtype) * clock * min(value("loop", 0.75), 1.0))
    exponent = scores / (gpu.exp_per_clock_per_cu * gpu.peak_clock_mhz * 1e6 * clock)
    vector = scores * _VECTOR_OPS[op.backward] * _LANE_FLOPS * units / (gpu.vector_flops * clock)
    softmax = max(exponent, vector) * value("softmax", 1.0)
    overlap = min(value("overlap", 0.5), 1.0)
    return AttentionConstants(
        rows=float(shape.rows),
        columns=float(shape.columns),
        iteration=max(matrix, softmax) + (1.0 - overlap) * min(matrix, softmax),
        prologue=value("prologue_us", 5.0) * 1e-6,
        launch=value("launch_us", 5.0) * 1e-6,
        waves=value("waves", 0.3),
        units=units,
        bandwidth=gpu.memory_bandwidth * min(efficiency.get("gemm.memory", 0.85), 1.0),
        atomic=value("atomic_bytes", 0.0) / (efficiency.get("attention.atomic_tbs", 2.2) * 1e12),
    )


def iterations(
    own: FloatArray, other: FloatArray, rows: FloatArray, columns: FloatArray, causal: FloatArray, window: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(work-groups, iterations in all, iterations of the longest) of one head of one sequence.

    ``own``: length of the side that work-groups own, ``other``: of the side that they iterate over. An arithmetic
    series: group i of a causal kernel meets ``(i+1)·rows`` positions (plus the offset when the other side is longer),
    capped by the window. ``rows/columns`` that do not divide each other leave on average half a column block more,
    less the exact hits.
    """
    groups = np.ceil(own / rows)
    whole = np.ceil(other / columns)
    ratio = rows / columns
    offset = np.maximum(other - own, 0.0) / columns
    cap = np.minimum(whole, np.ceil((window + rows) / columns))
    partial = (1.0 - np.gcd(rows.astype(np.int64), columns.astype(np.int64)) / columns) / 2.0
    rising = np.clip(np.floor((cap - offset) / ratio), 0.0, groups)
    series = ratio * rising * (rising + 1.0) / 2.0 + rising * (partial + offset)
    masked = np.minimum(series, rising * cap) + (groups - rising) * cap
    return groups, np.where(causal > 0, masked, groups * whole), np.where(causal > 0, cap, whole)


def seconds(ops: list[Attention], classes: list[AttentionConstants]) -> FloatArray:
    """Seconds of each flash-attention operator, (n,); ``classes`` (n,) are the constants of each."""
    table = np.array([[getattr(c, f) for f in AttentionConstants.__dataclass_fields__] for c in classes])
    rows, columns, iteration, prologue, launch, waves, units, bandwidth, atomic = table.T
    cells = [
        (
            *(o.batch, o.heads, o.kv_heads, o.seq_q, o.seq_k, o.head_dim_qk, o.head_dim_v, o.causal),
            o.window if o.window is not None and o.causal else o.seq_k,
            o.backward,
            element_bytes(o.dtype),
        )
        for o in ops
    ]
    batch, heads, kv, q, s, qk, v, causal, window, backward, size = np.array(cells, dtype=np.float64).T
    own, other = np.where(backward > 0, s, q), np.where(backward > 0, q, s)
    groups, inner, longest = iterations(own, other, rows, columns, causal, window)
    lists = batch * heads
    mean = prologue + inner / groups * iteration
    count = lists * groups
    exact = count / units
    blended = waves * np.ceil(exact) + (1.0 - waves) * exact
    loop = np.maximum(blended * mean, prologue + longest * iteration)
    io = size * batch * (q * heads * (qk + v) + s * kv * (qk + v))
    # backward also reads dO and the log-sum-exp, writes three gradients, sums dO·O and converts an fp32 dQ (4 B
    # write, read)
    extra = size * batch * (q * heads * (qk + 3 * v) + s * kv * (qk + v)) + 8.0 * batch * heads * q * qk
    helpers = batch * heads * q * (2.0 * v * size + (8.0 + size) * qk) / bandwidth
    floor = (io + backward * extra) / bandwidth
    atomics = atomic * inner * columns * lists * qk
    total: FloatArray = launch + np.maximum(loop + backward * (helpers + atomics), floor)
    return total
