"""Attention of queries that choose their keys: FLOP at a stated share of the peak, never faster than its tensors move.

Queries gather keys of their own, so that no tile is shared between them; what is stated are shares that published kernels
reach (``attention.*.selected`` of the efficiency files).
"""

from __future__ import annotations

from projector.hardware.types import Efficiency, Gpu
from projector.kernels.constants import element_bytes
from projector.operators.types import Attention


def seconds(op: Attention, gpu: Gpu, efficiency: Efficiency) -> float:
    """Of one call. Raises ``KeyError`` for a type the GPU has no rate for."""
    word = "backward" if op.backward else "forward"
    compute = op.flops / (gpu.peak_of(op.dtype) * efficiency[f"attention.{word}.selected"])
    queries = float(op.batch) * op.heads * op.seq_q * (op.head_dim_qk + op.head_dim_v)
    keys = float(op.batch) * op.kv_heads * op.seq_k * op.head_dim_qk
    passes = 2.0 if op.backward else 1.0
    return max(compute, passes * element_bytes(op.dtype) * (queries + keys) / gpu.memory_bandwidth)
