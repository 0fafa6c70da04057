"""A time that holds several kernels, as the operators that it is the sum of."""

from __future__ import annotations

from dataclasses import replace

from projector.kernels.constants import element_bytes
from projector.kernels.protocol import ComputeOp
from projector.operators.types import Gemm, Stream


def passes(op: ComputeOp, quantised: bool) -> tuple[ComputeOp, ...]:
    """Forward (TN), data gradient (NN) and weight gradient (NT) of the linear whose forward is ``op``.

    ``quantised``: with the casts of input, weight and output gradient from bf16, each read once and written twice (as it
    is and transposed), as a block-scaled FP8 linear does.
    """
    if not isinstance(op, Gemm):
        raise TypeError(f"a dense product, not {type(op).__name__}")
    m, n, k = op.m, op.n, op.k
    products: tuple[ComputeOp, ...] = (
        op,
        replace(op, n=k, k=n, layout="NN"),
        replace(op, m=n, n=k, k=m, layout="NT"),
    )
    if not quantised:
        return products
    narrow = 2.0 * element_bytes(op.dtype)
    casts = (
        Stream(name=name, kind="cast", read=2.0 * size, write=narrow * size)
        for name, size in (("input", m * k), ("weight", n * k), ("gradient", m * n))
    )
    return (*products, *casts)
