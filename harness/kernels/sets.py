"""Divides the rows of a kernel table into sets that are fitted together, and says which parameters each set fits: matrix
products, attention, grouped products, streams.

``bounds.yaml`` has the range of each parameter. A library with few rows on a GPU moves fewer of them: parameters that a
table cannot determine stay as the architecture has them. Bare reads, writes and copies show the bandwidth that streams
reach on a device; classes of a framework's kernels (``elementwise``, ``permute``, ``loss``) have one row a device and
state their share themselves, so none is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from harness.evidence import shelf
from harness.kernels.fit import Bounds, Set
from projector.kernels.attention_constants import block, parent
from projector.kernels.protocol import ComputeOp
from projector.kernels.tables import Measured
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream

Op = TypeVar("Op", bound=ComputeOp)

MANY, SEVERAL = 40, 8  # least rows for all, and for some, constants of a library
SOME = 12  # least large rows of a library for a rate of its own
MANY_ATTENTION, FEW_SHAPES = 11, 4  # least rows of attention for all constants; least shapes for more than the rate
LARGE = 1e11  # FLOP of a product that its loop decides

GROUPED_SOME = ("grouped.loop", "grouped.overlap", "grouped.waves")

BARE = frozenset({"copy", "reduce", "fill"})

_FILE: Mapping[str, Any] = shelf.data("kernels/bounds.yaml")
#: Prior, lowest and highest value by kind of kernel and constant.
BOUNDS: Mapping[str, Mapping[str, Bounds]] = {
    kind: {name: tuple(ends) for name, ends in said.items()} for kind, said in _FILE.items() if kind != "general"
}
GENERAL = frozenset(map(tuple, _FILE["general"]))


def of_one(rows: Sequence[Measured], kind: type[Op], key: Callable[[str, Op], Any]) -> list[tuple[Any, list[Measured]]]:
    """Returns the rows of operators of one ``kind`` by the ``key`` of their library and operator, keys in order."""
    chosen: dict[Any, list[Measured]] = {}
    for row in rows:
        if isinstance(row.op, kind):
            chosen.setdefault(key(row.family, row.op), []).append(row)
    return sorted(chosen.items())


def operands(dtype: str) -> str:
    """Returns the type of operands under which a row is fitted: both 16-bit types run alike."""
    return "bf16" if dtype == "fp16" else dtype


def gemm(rows: Sequence[Measured]) -> list[Set]:
    """Returns a set for each library, type and scaling with enough large rows."""
    sets = []
    for key, members in of_one(rows, Gemm, lambda family, op: (family, operands(op.dtype), op.scaling)):
        family, dtype, scaling = key
        general = key in GENERAL
        least = 0.0 if len(members) >= MANY else LARGE if general else 1e10
        big = [r for r in members if r.op.flops > least]
        if len(big) < (3 if general else SOME):
            continue
        plain = scaling == dtype or (general and scaling in ("rowwise", "tensorwise"))
        tail = ".".join(word for word in ("" if general else family, dtype, "" if plain else scaling) if word)
        names = BOUNDS["gemm"]
        small = sum(row.op.flops < LARGE for row in members)  # what a tile costs beside its loop shows in these alone
        if len(members) < MANY or small < SEVERAL or len({nk(row) for row in members}) < 5:
            names = {"gemm.loop": names["gemm.loop"]}
        if not any(row.condition == "framework average" for row in members):
            names = {n: p for n, p in names.items() if "burst" not in n}  # long profiled runs show the sustained clock
        keys = {f"{n}.{tail}": p for n, p in names.items()}
        sets.append(Set(f"gemm {family} {dtype} {scaling}", tuple(big), family, keys))
    return sets


def nk(row: Measured) -> object:
    return (row.op.n, row.op.k, row.op.layout) if isinstance(row.op, Gemm) else None


def attention(rows: Sequence[Measured]) -> list[Set]:
    """Returns a set for each family, type of operands and direction, families that others take constants from first. All
    masks and head dimensions of a set share its constants, except kernels whose two head dimensions differ."""
    result = []
    for (_, family, dtype, backward, dim), members in of_one(rows, Attention, _attention_key):
        if len(members) < 3:
            continue
        stem = f"attention.{'backward' if backward else 'forward'}"
        tail = f"{family}.{dtype}" + (f".d{dim}" if dim else "")
        keys = {f"{stem}.{name}.{tail}": bounds for name, bounds in _attention_constants(members).items()}
        result.append(Set(f"{stem} {tail}", tuple(members), family, keys))
    return result


def _attention_key(family: str, op: Attention) -> tuple[bool, str, str, bool, int]:
    # Unequal head dimensions mean another kernel with a rate of its own: not where the operands' way through shared memory
    # explains the rate, nor for a family that only scales another one.
    copies = block(family, "", op.head_dim_v, op.dtype, op.causal, op.backward).warp_rows > 0
    own = op.head_dim_qk != op.head_dim_v and not copies and not parent(family)
    return bool(parent(family)), family, operands(op.dtype), op.backward, op.head_dim_qk if own else 0


def _attention_constants(rows: Sequence[Measured]) -> Mapping[str, Bounds]:
    """Returns what the rows can tell apart: a few fit a rate and the cost of a work-group, or the rate alone, and take the
    rest from the family that they resemble."""
    ops = [row.op for row in rows if isinstance(row.op, Attention)]
    shapes = len({(op.seq_q, op.heads * op.batch, op.head_dim_v) for op in ops})
    widths = {op.head_dim_qk for op in ops}
    kernel = block(rows[0].family, "", ops[0].head_dim_v, ops[0].dtype, True, ops[0].backward)
    many = len(rows) >= MANY_ATTENTION
    known = BOUNDS["attention"]
    chosen = {"loop": known["loop"]}
    if all(row.condition == "framework average" for row in rows):
        chosen |= BOUNDS["average"]
    elif kernel.paired and many:
        chosen["launch_us"] = known["launch_us"]
    if many or (shapes >= FEW_SHAPES and len({op.seq_k for op in ops}) > 1):
        chosen["prologue_us"] = known["prologue_us"]
    if many or (shapes >= FEW_SHAPES and len(widths) > 1 and not kernel.warp_rows):
        chosen["overlap"] = known["overlap"]
    if kernel.paired and many:
        chosen["power"] = known["power"]
    if many and not kernel.paired and any(op.causal for op in ops) and not ops[0].backward:
        chosen["mask"] = known["mask"]
    if kernel.warp_rows and len(widths) > 1:
        chosen["fetch"] = known["fetch"]
    if many and not kernel.warp_rows and min(widths) < 128:
        chosen["softmax"] = known["softmax"]  # products hide it at larger head dimensions
    return chosen


def grouped(rows: Sequence[Measured]) -> list[Set]:
    """Returns a set for each backend."""
    sets = []
    for backend, members in of_one(rows, GroupedGemm, lambda _, op: op.backend):
        names = (
            tuple(BOUNDS["grouped"])
            if len(members) >= MANY
            else GROUPED_SOME
            if len(members) >= SEVERAL
            else ("grouped.loop",)
        )
        keys = {f"{name}.{backend}": BOUNDS["grouped"][name] for name in names}
        if len(members) >= MANY and all(row.condition == "framework average" for row in members):
            keys |= {f"{name}.{backend}": ends for name, ends in BOUNDS["issue"].items()}
        sets.append(Set(f"grouped {backend}", tuple(members), "", keys))
    return sets


def stream(rows: Sequence[Measured]) -> list[Set]:
    """Returns one set of bare operations, where there are several."""
    bare = [row for row in rows if isinstance(row.op, Stream) and row.op.kind in BARE]
    return [Set("stream", tuple(bare), "", BOUNDS["stream"], _bytes_moved)] if len(bare) > 1 else []


def _bytes_moved(row: Measured) -> object:
    """Returns the key of rows that are left out together: those that read and write the same bytes."""
    return (row.op.kind, row.op.read, row.op.write) if isinstance(row.op, Stream) else None
