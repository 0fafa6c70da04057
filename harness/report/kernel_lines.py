"""Which measured points of a GPU lie on one line: rows that differ in one dimension alone. Chosen by the table itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.kernels.schema import Row
from projector.operators.types import Attention, Gemm, GroupedGemm

DIMENSIONS = {"m": "M (rows of the output)", "n": "N (columns of the output)", "k": "K (reduction)"}
_MOST = {"gemm": 3, "attention": 6, "grouped": 5}  # lines of a panel
FEWEST = 4  # measured points that make a line of a GEMM worth drawing

#: What a legend calls it, and its rows in order of the dimension.
Line = tuple[str, tuple[Row, ...]]
Key = tuple[Any, ...]
Points = dict[Key, dict[int, Row]]


def gemm_lines(rows: Sequence[Row], name: str) -> list[Line]:
    """For each operand type the rows that differ in ``name`` alone, widest, fullest and largest first."""
    others = [n for n in DIMENSIONS if n != name]
    found: Points = {}
    for row in rows:
        op = row.measured.op
        if isinstance(op, Gemm) and op.batch == 1:
            fixed = tuple(getattr(op, n) for n in others)
            key: Key = (row.dtype, row.scaling, row.measured.family, op.layout, op.accumulate, op.out_bytes, fixed)
            found.setdefault(key, {}).setdefault(getattr(op, name), row)
    best: dict[Key, tuple[float, Key]] = {}
    for key, points in found.items():
        span = np.log2(max(points) / min(points)) if len(points) >= FEWEST else 0.0
        worth = span * min(len(points), 12) * _weight(points.values())
        if worth > best.get(key[:2], (0.0, ()))[0]:
            best[key[:2]] = (worth, key)
    chosen = [key for _, key in sorted(best.values(), key=lambda item: (-item[0], repr(item[1])))[: _MOST["gemm"]]]
    return [_gemm_line(others, found[key]) for key in chosen]


def _gemm_line(others: Sequence[str], points: Mapping[int, Row]) -> Line:
    some = _ordered(points)
    first, op = some[0], some[0].measured.op
    kind = f"{first.dtype} {first.scaling}" if first.scaling not in ("", first.dtype) else first.dtype
    at = ", ".join(f"{n.upper()}={getattr(op, n)}" for n in others)
    return f"{kind} {first.measured.family} {getattr(op, 'layout', '')}\n{at}", some


def _weight(rows: Iterable[Row]) -> float:
    """Lines of training size before those of decoding a token: decades of work above a hundred MFLOP."""
    return max(float(np.log10(np.median([row.flops for row in rows]))) - 8.0, 0.01)


def attention_lines(rows: Sequence[Row], backward: bool, causal: bool) -> list[Line]:
    """For each family, type and head width of one pass and mask the head count with most sequence lengths."""
    found: Points = {}
    for row in rows:
        op = row.measured.op
        alike = isinstance(op, Attention) and (op.backward, op.causal) == (backward, causal)
        if alike and isinstance(op, Attention) and op.seq_q == op.seq_k:
            width = f"{op.head_dim_qk}" if op.head_dim_qk == op.head_dim_v else f"{op.head_dim_qk}/{op.head_dim_v}"
            key: Key = (row.measured.family, row.dtype, width, op.heads, op.kv_heads)
            found.setdefault(key, {}).setdefault(op.seq_q, row)
    made: dict[Key, Line] = {}
    for key in _fullest(found, least=3):
        family, dtype, width, heads, shared = key
        label = f"{family} {dtype} D={width} {heads}/{shared} heads"
        made.setdefault(key[:3], (label, _ordered(found[key])))
    return list(made.values())[: _MOST["attention"]]


def grouped_lines(rows: Sequence[Row], layout: str) -> list[Line]:
    """For each set of experts of one pass the rows that differ in tokens alone."""
    found: Points = {}
    for row in rows:
        op = row.measured.op
        if isinstance(op, GroupedGemm) and op.layout == layout:
            key: Key = (op.groups, op.n, op.k, op.backend, row.measured.family, op.accumulate, op.out_bytes)
            found.setdefault(key, {}).setdefault(op.rows, row)
    made = []
    for key in _fullest(found, least=2)[: _MOST["grouped"]]:
        groups, n, k, backend, family, accumulate, _ = key
        how = " ".join(dict.fromkeys((family, backend))) + (", accumulating" if accumulate else "")
        made.append((f"{how}, {groups} experts\nN={n}, K={k}", _ordered(found[key])))
    return made


def _fullest(found: Points, least: int) -> list[Key]:
    kept = [key for key, points in found.items() if len(points) >= least]
    return sorted(kept, key=lambda key: (-len(found[key]), repr(key)))


def _ordered(points: Mapping[int, Row]) -> tuple[Row, ...]:
    return tuple(points[value] for value in sorted(points))
