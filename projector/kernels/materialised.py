"""Attention without a flash kernel: score matrices in device memory, as the trainers of 2021–2022 ran it.

Forward: Q·Kᵀ (batched GEMM), scale+mask+softmax in one fused kernel, dropout where there is any, P·V; an
eager softmax in fp32 and the cast of its output instead (``wide``). Backward: the two GEMMs of each
product and the two element-wise kernels in reverse. A mask skips nothing. Source: Megatron-LM
core/transformer/dot_product_attention.py and fused_softmax.py.
"""

from __future__ import annotations

from projector.kernels.constants import element_bytes
from projector.operators.types import Attention, Gemm, Stream
from projector.size import real


def expand(op: Attention) -> tuple[Gemm | Stream, ...]:
    """The batched GEMMs and streams that take the place of one flash kernel."""
    size = element_bytes(op.dtype)
    lists = op.batch * op.heads
    scores = real(lists) * op.seq_q * op.seq_k

    def product(name: str, m: int, n: int, k: int, layout: str) -> Gemm:
        return Gemm(name, m, n, k, batch=lists, dtype=op.dtype, layout=layout, out_bytes=size)

    q, s, qk, v = op.seq_q, op.seq_k, op.head_dim_qk, op.head_dim_v
    once, masked = scores * size, scores * (size + 1.0)
    read, write = (masked, once) if op.backward else (once, masked)
    dropped = (Stream("dropout", "elementwise", read, write),) if op.dropout else ()
    wide = 4.0 * scores if op.wide else once
    read, write = (once, wide) if op.backward else (wide, once)
    cast = (Stream("softmax_cast", "elementwise", read, write),) if op.wide else ()
    if not op.backward:
        return (
            product("scores", q, s, qk, "TN"),
            Stream("softmax", "softmax", once, wide),
            *cast,
            *dropped,
            product("context", q, v, s, "NN"),
        )
    return (
        product("dprobs", q, s, v, "TN"),
        product("dvalue", s, v, q, "NT"),
        *dropped,
        *cast,
        Stream("softmax", "softmax", 2.0 * wide, once),
        product("dquery", q, qk, s, "NN"),
        product("dkey", s, qk, q, "NT"),
    )
