"""The bytes of device memory that an operator must move, whatever runs it: the lower bound of a kernel's traffic."""

from __future__ import annotations

from projector.kernels.constants import element_bytes
from projector.kernels.protocol import ComputeOp
from projector.operators.types import Attention, Gemm, Stream


def unique_bytes(op: ComputeOp) -> float:
    """Returns the bytes that the operator cannot avoid moving: every operand read once, every result written once."""
    if isinstance(op, Stream):
        return op.bytes
    size = element_bytes(op.dtype)
    if isinstance(op, Attention):
        width = op.head_dim_qk + op.head_dim_v
        moved = op.batch * width * (op.heads * op.seq_q + op.kv_heads * op.seq_k) * size
        return 2.0 * moved if op.backward else moved
    writes = 2.0 if op.accumulate else 1.0
    if isinstance(op, Gemm):
        return op.batch * ((op.m * op.k + op.n * op.k) * size + op.m * op.n * op.out_bytes * writes)
    weights = float(op.groups * op.n * op.k)
    if op.layout == "NT":
        return op.rows * (op.n + op.k) * size + weights * op.out_bytes * writes
    return (op.rows * op.k + weights) * size + op.rows * op.n * op.out_bytes * writes
