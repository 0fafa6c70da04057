"""Flash attention as a work list: the blocks that each work-group executes, summed in closed form, spread over the units.

A work-group owns ``rows`` queries (forward) or keys (backward) and iterates over blocks of the other side that the mask
leaves, each at the cost of :mod:`projector.kernels.attention_constants`. Causal skipping is exact at block level: short
sequences execute more than half. The backward has helpers that move bytes: the row sums of dO∘O, the fill and
conversion of an fp32 dQ, and the sum of dK, dV over the query heads of a group. Structure: FlashAttention-2/3/4 papers
(arXiv 2307.08691, 2407.08608, 2603.05451); constants ``attention.*`` of the efficiency file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from projector.dataclass import dataclass
from projector.kernels.attention_constants import AttentionConstants, constants
from projector.kernels.constants import Columns, distinct, element_bytes
from projector.kernels.protocol import FloatArray
from projector.operators.types import Attention, Gemm, Stream
from projector.size import real, table

__all__ = ["AttentionConstants", "AttentionShapes", "columns_of", "constants", "makespan", "materialised"]
__all__ += ["seconds", "seconds_of"]


@dataclass(frozen=True, slots=True)
class AttentionShapes:
    """Attention operators as columns, each (n,): sizes, ``causal`` and ``backward`` as 0 or 1, ``window`` in positions
    (``inf`` for none; only causal masks have one), ``size`` in bytes of one operand element.
    """

    batch: FloatArray
    heads: FloatArray
    kv_heads: FloatArray
    seq_q: FloatArray
    seq_k: FloatArray
    head_dim_qk: FloatArray
    head_dim_v: FloatArray
    causal: FloatArray
    window: FloatArray
    backward: FloatArray
    size: FloatArray


def columns_of(ops: Sequence[Attention], number: int = 1) -> AttentionShapes:
    """Returns the operators as columns, (n · number,) where their sizes have ``number`` rows."""
    cells = [
        (
            *(o.batch, o.heads, o.kv_heads, o.seq_q, o.seq_k, o.head_dim_qk, o.head_dim_v, o.causal),
            o.window if o.window is not None and o.causal else np.inf,
            o.backward,
            element_bytes(o.dtype),
        )
        for o in ops
    ]
    return AttentionShapes(*table(cells, number)) if cells else AttentionShapes(*np.zeros((11, 0)))


def seconds(ops: Sequence[Attention], classes: Sequence[AttentionConstants], number: int = 1) -> FloatArray:
    """Returns the seconds of each flash-attention operator, (n · number,); ``classes`` (n,): the constants of each."""
    known, index = distinct(classes)
    return seconds_of(columns_of(ops, number), known, np.repeat(index, number))


def seconds_of(
    shapes: AttentionShapes, classes: Sequence[AttentionConstants], index: npt.NDArray[np.int64]
) -> FloatArray:
    """Returns the seconds of each shape, (n,); ``index`` (n,) says which of ``classes`` it belongs to."""
    if not len(index):
        return np.zeros(0)
    k = Columns(classes, index)
    return k.launch + np.maximum(_loop(shapes, k) + shapes.backward * _helpers(shapes, k), _floor(shapes, k))


def _band(x: AttentionShapes) -> tuple[FloatArray, FloatArray]:
    """Returns the positions of the other side that the owner of position p sees, [p + low, p + high), by direction."""
    offset = x.seq_k - x.seq_q  # the mask is aligned with the last query and the last key
    low = np.where(x.backward > 0, -offset, offset - x.window + 1.0)
    high = np.where(x.backward > 0, x.window - 1.0 - offset, offset)
    return np.where(x.causal > 0, low, -np.inf), np.where(x.causal > 0, high, np.inf)


def _loop(x: AttentionShapes, k: Columns) -> FloatArray:
    """Returns the makespan of the work-groups over the units."""
    own, other = np.where(x.backward > 0, x.seq_k, x.seq_q), np.where(x.backward > 0, x.seq_q, x.seq_k)
    done = work(own, other, k.rows, k.columns, *_band(x))
    lists = x.batch * x.heads
    mean = k.prologue + done.blocks / done.groups * k.iteration
    longest = k.prologue + done.longest * k.iteration
    pairs = k.paired > 0
    mean = np.where(pairs, np.minimum(2.0, done.groups) * mean, mean)
    longest = np.where(pairs, mean, np.maximum(longest, mean))
    items = lists * np.where(pairs, np.ceil(done.groups / 2.0), done.groups)
    busy = lists * (done.groups * k.prologue + done.blocks * k.iteration) / k.units
    span = makespan(items / k.units, mean, longest, k.tail)
    # units without work leave their share of the power limit to the others, which then run at a higher clock
    clocked = span * np.maximum((busy / span) ** k.power, k.boost)
    atomics = k.atomic * done.blocks * k.columns * lists * x.head_dim_qk
    # the bytes of the iterated side that caches do not hold: work-groups of a head stream it at different places, so
    # that reuse fades from half a cache (the other half holds what the work-groups own) to a whole one
    widths = (x.head_dim_qk + x.head_dim_v) * x.size
    share = np.clip(2.0 - k.cache / (other * widths), 0.0, 1.0)
    return clocked + x.backward * atomics + k.spill * (share * (lists * done.blocks) * k.columns * widths) / k.bandwidth


def makespan(waves: FloatArray, mean: FloatArray, longest: FloatArray, tail: FloatArray) -> FloatArray:
    """Returns the seconds until ``waves`` times as many work-groups as units are done, at the sustained clock. Arrays (n,).

    Equal work-groups run in whole waves. Unequal ones fill each other's gaps, down to the tail that the order of launch
    leaves: 0 when the longest start first, the excess of the longest over the mean when they start last.
    """
    alike = np.clip(2.0 * mean / longest - 1.0, 0.0, 1.0)
    flow = waves + alike * (np.ceil(waves) - waves)
    left = tail * np.clip(waves - 1.0, 0.0, 1.0) * (longest - mean)
    return np.maximum(flow * mean + left, longest)


def _helpers(x: AttentionShapes, k: Columns) -> FloatArray:
    """Returns the seconds of the backward's helpers: dO∘O, fill and conversion of dQ, sum of dK and dV over a group's
    heads."""
    rows = x.batch * x.heads * x.seq_q
    convert = np.where(k.dq_bytes > x.size, 2.0 * k.dq_bytes + x.size, x.size)
    grouped = np.where(x.heads > x.kv_heads, x.batch * x.seq_k * (2.0 * x.heads + x.kv_heads), 0.0)
    return (
        rows * (2.0 * x.head_dim_v * x.size + convert * x.head_dim_qk)
        + k.group_sum * grouped * (x.head_dim_qk + x.head_dim_v) * x.size
    ) / k.bandwidth


def _floor(x: AttentionShapes, k: Columns) -> FloatArray:
    """Returns the seconds that every tensor takes once over the memory bandwidth."""
    widths = x.head_dim_qk + x.head_dim_v
    queries, keys = x.batch * x.heads * x.seq_q, x.batch * x.kv_heads * x.seq_k
    forward = queries * widths + keys * widths
    # backward also reads dO and the log-sum-exp and writes three gradients
    gradients = queries * (x.head_dim_qk + 3.0 * x.head_dim_v) + keys * widths
    return x.size * (forward + x.backward * gradients) / k.bandwidth


IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one head of one sequence, arrays (n,): tiles, blocks of all tiles, blocks of the longest tile."""

    groups: FloatArray
    blocks: FloatArray
    longest: FloatArray


def floor_sum(count: IntArray, step: IntArray, start: IntArray, divisor: IntArray) -> IntArray:
    """Returns Σ over i in [0, count) of ⌊(step·i + start)/divisor⌋ for whole ``step, start ≥ 0``, ``divisor ≥ 1``.

    ``count`` ≤ 0 gives 0. Arrays (n,) of equal shape. The loop is over Euclid's algorithm, not over shapes.
    """
    total: IntArray = np.zeros_like(count)
    sign = np.ones_like(count)
    n, a, b, m = np.maximum(count, 0), step, start, divisor
    while True:
        total = total + sign * (n * (n - 1) // 2 * (a // m) + n * (b // m))
        a, b = a % m, b % m
        top = (a * n + b) // m  # values that the reduced progression reaches
        if not top.any():
            return total
        # Σ_{i<n} ⌊(ai+b)/m⌋ = n·top − Σ_{j<top} ⌊(m·j + m − b + a − 1)/a⌋ ; tiles without a remainder drop out
        total = total + sign * n * top
        sign = -sign
        a_safe = np.where(top > 0, a, 1)
        n, a, b, m = top, np.where(top > 0, m, 0), np.where(top > 0, m - b + a - 1, 0), a_safe


def work(
    own: FloatArray, other: FloatArray, rows: FloatArray, columns: FloatArray, low: FloatArray, high: FloatArray
) -> Work:
    """Returns the tiles and blocks of one head. ``own``, ``other``: lengths of both sides; ``low`` ≤ ``high``: the band.

    All arrays (n,) of whole numbers; ``-inf``/``inf`` for a side without a bound. A tile that sees nothing takes no
    block. The longest tile is exact for full and causal masks and at most one block high under a window.
    """
    r, c, q, s = (np.asarray(x, dtype=np.int64) for x in (rows, columns, own, other))
    a = np.clip(low, -q, s).astype(np.int64)  # beyond either end the band covers the whole side
    b = np.clip(high, -q, s).astype(np.int64)
    tiles = -(-q // r)
    whole = -(-s // c)
    last = tiles - 1
    # ends: nothing seen before tile `empty`, then a rising end, the whole other side from tile `full` on
    empty = np.clip(-b // r, 0, last)
    full = np.clip(-((b - s) // r) - 1, empty, last)
    rising = full - empty
    first = (empty + 1) * r + b + c - 1
    ends = floor_sum(rising, r, np.where(rising > 0, first, 0), c) + (last - full) * whole
    ends += -(-np.clip(q + b, 0, s) // c)
    # starts: zero up to tile `kept`, then rising
    kept = np.clip(-(a // r), 0, tiles)
    moving = tiles - kept
    starts = floor_sum(moving, r, np.where(moving > 0, kept * r + a, 0), c)
    reach = np.maximum(-(-np.clip(q + b, 0, s) // c) - np.maximum(a, 0) // c, 0)
    longest = np.minimum(reach, -(-(np.minimum(r, q) + b - a) // c) + 1)
    return Work(tiles.astype(np.float64), (ends - starts).astype(np.float64), longest.astype(np.float64))


# Attention without a flash kernel: score matrices in device memory, as the trainers of 2021–2022 ran it.
#
# Forward: Q·Kᵀ (batched GEMM), scale+mask+softmax in one fused kernel, dropout where there is any, P·V; an
# eager softmax in fp32 and the cast of its output instead (``wide``), after a scale and a mask of their own (``apart``; a
# sum hands its gradient on; huggingface/transformers models/llama/modeling_llama.py, eager_attention_forward). Backward: the
# two GEMMs of each product and the two element-wise kernels in reverse. A mask skips nothing. Source: Megatron-LM
# core/transformer/dot_product_attention.py and fused_softmax.py.


def materialised(op: Attention) -> tuple[Gemm | Stream, ...]:
    """Returns the batched GEMMs and streams that take the place of one flash kernel."""
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
    apart = tuple(Stream(name, "elementwise", once, once) for name in ("scale", "mask") if op.apart)
    if not op.backward:
        return (
            product("scores", q, s, qk, "TN"),
            *apart,
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
        *apart[:1],
        product("dquery", q, qk, s, "NN"),
        product("dkey", s, qk, q, "NT"),
    )
