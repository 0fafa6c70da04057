"""Which rows are neighbours, so that none is judged by a fit that saw another: whole groups are left out together."""

from __future__ import annotations

from harness.kernels.schema import Row
from projector.kernels.protocol import ComputeOp
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream


def group_of(row: Row) -> tuple[object, ...]:
    return group_of_op(row.measured.op)


def group_of_op(op: ComputeOp) -> tuple[object, ...]:
    """GEMM: the weight (n, k) or (k, n), whatever m, layout and batch. Attention: lengths, heads and width, masked or not.
    Grouped: the weight and the number of experts. Streams: kind and size.
    """
    if isinstance(op, Gemm):
        return (min(op.n, op.k), max(op.n, op.k))
    if isinstance(op, Attention):
        return (op.seq_q, op.seq_k, op.heads * op.batch, op.head_dim_qk, op.head_dim_v)
    if isinstance(op, GroupedGemm):
        return (op.groups, min(op.n, op.k), max(op.n, op.k))
    if isinstance(op, Stream):
        return (op.kind, op.bytes)
    raise TypeError(type(op).__name__)
