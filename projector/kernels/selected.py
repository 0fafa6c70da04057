"""Attention of queries that choose their keys: its keys at a stated share of the peak, and its own rows before and after.

Queries gather keys of their own, so that no tile is shared between them: one group of threads loads a query, its output and
their gradients, goes through its keys, writes and ends. Time is linear in the keys, and what is left at none is the
traffic of the query's rows (NVIDIA/cudnn-frontend pull request 318: backward of 4096 queries of 64 heads of 512 on SM100 in
0.56, 1.23, 2.16 and 4.02 ms for 128, 512, 1024 and 2048 keys, twice that for 128 heads). Shares are those of published
kernels (``attention.*.selected`` of the efficiency files).
"""

from __future__ import annotations

from projector.hardware.types import Efficiency, Gpu
from projector.kernels.constants import element_bytes
from projector.operators.types import Attention
from projector.size import real


def seconds(op: Attention, gpu: Gpu, efficiency: Efficiency) -> float:
    """Of one call. Raises ``KeyError`` for a type the GPU has no rate for."""
    word = "backward" if op.backward else "forward"
    compute = op.flops / (gpu.peak_of(op.dtype) * efficiency[f"attention.{word}.selected"])
    queries = real(op.batch) * op.heads * op.seq_q * (op.head_dim_qk + op.head_dim_v)
    keys = real(op.batch) * op.kv_heads * op.seq_k * op.head_dim_qk
    passes = 2.0 if op.backward else 1.0
    rate = gpu.memory_bandwidth * efficiency["attention.rows.selected"]
    return compute + passes * element_bytes(op.dtype) * (queries + keys) / rate
