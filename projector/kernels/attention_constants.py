"""The constants of one attention kernel on one GPU: instruction rates, sustained clock and fitted shares per block.

One iteration of a work-group costs the longer of its matrix products and its softmax (exponentials and vector
operations), plus the share of the shorter that the kernel does not overlap. The sustained clock scales products,
exponentials, vector operations and shared memory; it leaves the terms of device memory. Structure: FlashAttention-2/3/4
papers (arXiv 2307.08691, 2407.08608, 2603.05451); values ``attention.*`` of the efficiency file.
"""

from __future__ import annotations

from math import ceil

from projector.dataclass import dataclass
from projector.hardware.types import Efficiency, Gpu
from projector.kernels.attention_tiles import block, dq_bytes, parent, widths
from projector.kernels.constants import pick
from projector.operators.types import Attention
from projector.parameter import parameter

# by direction, backward or not
_VECTOR_OPS = parameter(
    {False: 4.5, True: 4.0},
    unit="operations a score",
    kind="derived",
    source="instructions of the vector pipe beside the exponential, in the loops of FlashAttention-2/3 (arXiv 2307.08691, "
    "2407.08608): scale and shift in one fused multiply-add, maximum, sum, half a packed cast, and the output scaled again, "
    "one a score at a head dimension as wide as the block; backward scale and shift, dP − δ, its product with P, two half "
    "casts; of near counts the one under which GPUs left out come nearest",
    scored=True,
)
_SHARED_BYTES = parameter(
    128.0, unit="B/clock/unit", kind="datasheet", source="CUDA programming guide, compute capabilities 8.0 to 10.0"
)
_LANE_FLOPS = 2.0  # arithmetic: a fused multiply-add counts two in the data sheet's vector rate


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """One attention kernel (family, dtype, head dimensions, mask, direction) on one GPU. Seconds unless said.

    ``iteration``: one block at the sustained clock; ``boost``: sustained over peak clock, the bound on what idle units
    can give back; ``power``: exponent of that gain; ``tail``: how often the excess of the longest work-group over the
    mean one is waited for at the end (0 longest first, up to 2 in the worst order); ``paired``: 1 where causal tiles go
    two to a work-group.
    """

    rows: float
    columns: float
    iteration: float
    prologue: float
    launch: float
    power: float
    tail: float
    boost: float
    paired: float
    units: float
    bandwidth: float  # bytes/s
    atomic: float  # per element of dQ and key block, beyond what the loop hides
    cache: float  # bytes of last-level cache that one work-group sees
    spill: float  # share of the traffic beyond that cache which the loop does not hide
    dq_bytes: float  # bytes of one dQ element while it accumulates
    group_sum: float  # share of the dK, dV sum over a group's query heads that is part of the operator


def constants(gpu: Gpu, efficiency: Efficiency, family: str, op: Attention) -> AttentionConstants:
    """Constants of the kernel that would run ``op``. Raises ``Unsupported`` if the GPU has no matrix rate for the type."""
    way = "backward" if op.backward else "forward"

    def value(stem: str, neutral: float | None = None) -> float:
        return _constant(efficiency, f"attention.{way}.{stem}", family, op, neutral)

    qk, v = widths(family, op.head_dim_qk, op.head_dim_v, op.backward)
    shape = block(family, gpu.arch, max(qk, v), op.dtype, op.causal, op.backward)
    scores = float(shape.rows * shape.columns)
    clock = min(efficiency.get("clock.attention", efficiency["clock.matrix"]), 1.0)
    units = float(gpu.compute_units)
    depth = 3 * qk + 2 * v if op.backward else qk + v
    matrix = 2.0 * scores * depth * units / (gpu.peak_of(op.dtype) * clock * min(value("loop"), 1.0))
    # operands that every warp reads from shared memory for its own rows only
    shared = 2.0 * depth * shape.columns * shape.rows / shape.warp_rows if shape.warp_rows else 0.0
    matrix += value("fetch") * shared / (_SHARED_BYTES * gpu.peak_clock_mhz * 1e6 * clock)
    exponent = scores / (gpu.exp_per_clock_per_cu * gpu.peak_clock_mhz * 1e6 * clock)
    vector = scores * _VECTOR_OPS[op.backward] * _LANE_FLOPS * units / (gpu.vector_flops * clock)
    softmax = max(exponent, vector) * value("softmax", 1.0)
    overlap = min(value("overlap"), 1.0)
    # blocks on the diagonal compare and select every score, and nothing runs beside them yet
    masked = value("mask", 0.0) * softmax * ceil(shape.rows / shape.columns) if op.causal else 0.0
    return AttentionConstants(
        rows=float(shape.rows),
        columns=float(shape.columns),
        iteration=max(matrix, softmax) + (1.0 - overlap) * min(matrix, softmax),
        prologue=value("prologue_us") * 1e-6 * (0.5 + (qk + v) / 512.0) + masked,
        launch=value("launch_us") * 1e-6,
        power=value("power"),
        tail=min(value("tail"), 2.0),
        boost=clock,
        paired=float(shape.paired and op.causal),
        units=units,
        bandwidth=gpu.memory_bandwidth * min(efficiency["gemm.memory"], 1.0),
        atomic=value("atomic_bytes", 0.0) / (efficiency["attention.atomic_tbs"] * 1e12),
        cache=max(gpu.l2_bytes / gpu.dies, gpu.llc_bytes),
        spill=value("spill"),
        dq_bytes=dq_bytes(family),
        group_sum=value("group_sum", 1.0),
    )


def _constant(efficiency: Efficiency, stem: str, family: str, op: Attention, neutral: float | None) -> float:
    """The most specific key of ``family``, then of the family that it resembles, then of all families."""
    found = efficiency.parameters
    dim = f"d{op.head_dim_qk}"
    for name in (family, parent(family)):
        for dtype in (op.dtype, "bf16") if op.dtype == "fp16" else (op.dtype,):
            for key in (f"{stem}.{name}.{dtype}.{dim}", f"{stem}.{name}.{dtype}"):
                if name and key in found:
                    return found[key].value
        if name and f"{stem}.{name}" in found:
            return found[f"{stem}.{name}"].value
    return pick(efficiency, stem, family, op.dtype, dim, neutral)
