"""Which rows of a kernel table are fitted together, and which parameters they fit: matrix products, grouped ones, streams.

Each parameter: (prior, lowest, highest). A library with few rows on a GPU moves fewer of them: what a table cannot tell
stays as the architecture has it. Of streams, bare reads, writes and copies say what a device's memory reaches beside
others; classes of a framework's kernels (``elementwise``, ``permute``, ``loss``) have one row a device and state their share
themselves, so none is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from harness.kernels.fit import Set
from projector.kernels.protocol import ComputeOp
from projector.kernels.tables import Measured
from projector.operators.types import Gemm, GroupedGemm, Stream

Op = TypeVar("Op", bound=ComputeOp)

MANY, SEVERAL = 40, 8  # rows that can carry all, and some, constants of a library
GEMM = {
    "gemm.loop": (0.8, 0.3, 1.0),
    "gemm.perimeter": (0.2, 0.0, 1.0),
    "gemm.iteration": (0.05, 0.0, 0.6),
    "gemm.prologue_us": (3.0, 0.0, 14.0),
    "gemm.prologue_floor_us": (0.5, 0.0, 3.0),
    "gemm.launch_us": (3.0, 1.0, 10.0),
    "gemm.waves": (0.4, 0.0, 1.0),
    "gemm.exposed": (0.3, 0.15, 1.0),  # no table without accumulating rows can show that output costs nothing
    "gemm.cold": (0.1, 0.0, 1.0),
    "gemm.memory": (0.75, 0.45, 0.95),
    "gemm.burst": (0.05, 0.0, 0.5),
    "gemm.burst_us": (300.0, 20.0, 1000.0),
    "gemm.split_us": (2.0, 0.0, 8.0),
    "gemm.split_bytes": (8.0, 2.0, 40.0),
}
SOME = 12  # large rows that a library needs for a rate of its own

# Which library's figures become the device's constants for every family that has none of its own.
GENERAL = (
    ("cublaslt", "bf16", ""),
    ("hipblaslt", "bf16", ""),
    ("cublaslt", "fp8", "tensorwise"),
    ("flydsl_preshuffled", "fp8", "rowwise"),
    ("ck", "fp8", "blockwise"),
    ("deepgemm", "fp8", "blockwise"),
    ("asm", "mxfp4", "mxfp4"),
    ("cublaslt", "fp4", ""),
    ("hipkittens", "mxfp8", "mxfp8"),
)

GROUPED = {
    "grouped.loop": (1.0, 0.5, 1.6),
    "grouped.memory": (0.8, 0.5, 0.95),
    "grouped.overlap": (0.2, 0.0, 1.0),
    "grouped.waves": (0.4, 0.0, 1.0),
    "grouped.group_us": (0.5, 0.0, 6.0),
    "grouped.burst": (0.05, 0.0, 0.5),
}
ISSUE = (6.0, 0.0, 20.0)  # the host of a framework that was timed; it never becomes a parameter of a projection
GROUPED_SOME = ("grouped.loop", "grouped.overlap", "grouped.waves")

BARE = frozenset({"copy", "reduce", "fill"})
STREAM = {"stream.device": (1.0, 0.7, 1.15)}


def of_one(rows: Sequence[Measured], kind: type[Op], key: Callable[[str, Op], Any]) -> list[tuple[Any, list[Measured]]]:
    """The rows of operators of one ``kind`` by the ``key`` of their library and operator, in the order of the keys."""
    chosen: dict[Any, list[Measured]] = {}
    for row in rows:
        if isinstance(row.op, kind):
            chosen.setdefault(key(row.family, row.op), []).append(row)
    return sorted(chosen.items())


def operands(dtype: str) -> str:
    """The type of operands under which a row is fitted: both 16-bit types run alike."""
    return "bf16" if dtype == "fp16" else dtype


def gemm(rows: Sequence[Measured]) -> list[Set]:
    """A set for each library, type and scaling with enough large rows."""
    made = []
    for key, few in of_one(rows, Gemm, lambda family, op: (family, operands(op.dtype), op.scaling)):
        family, dtype, scaling = key
        general = key in GENERAL
        least = 0.0 if len(few) >= MANY else 1e11 if general else 1e10
        big = [r for r in few if r.op.flops > least]
        if len(big) < (3 if general else SOME):
            continue
        plain = scaling == dtype or (general and scaling in ("rowwise", "tensorwise"))
        tail = ".".join(word for word in ("" if general else family, dtype, "" if plain else scaling) if word)
        names = GEMM if len(few) >= MANY and len({nk(row) for row in few}) >= 5 else {"gemm.loop": GEMM["gemm.loop"]}
        if not any(row.condition == "framework average" for row in few):
            names = {n: p for n, p in names.items() if "burst" not in n}  # long profiled runs show the sustained clock
        keys = {f"{n}.{tail}": p for n, p in names.items()}
        made.append(Set(f"gemm {family} {dtype} {scaling}", tuple(big), family, keys, nk))
    return made


def nk(row: Measured) -> object:
    return (row.op.n, row.op.k, row.op.layout) if isinstance(row.op, Gemm) else None


def grouped(rows: Sequence[Measured]) -> list[Set]:
    """A set for each backend."""
    made = []
    for backend, few in of_one(rows, GroupedGemm, lambda _, op: op.backend):
        names = tuple(GROUPED) if len(few) >= MANY else GROUPED_SOME if len(few) >= SEVERAL else ("grouped.loop",)
        keys = {f"{name}.{backend}": GROUPED[name] for name in names}
        if len(few) >= MANY and all(row.condition == "framework average" for row in few):
            keys[f"grouped.issue_us.{backend}"] = ISSUE
        made.append(Set(f"grouped {backend}", tuple(few), "", keys, _linear))
    return made


def _linear(row: Measured) -> object:
    """Rows left out together: all phases of one linear of one number of experts."""
    return (row.op.flops, row.op.groups) if isinstance(row.op, GroupedGemm) else None


def stream(rows: Sequence[Measured]) -> list[Set]:
    """One set of bare operations, where there are several."""
    bare = [row for row in rows if isinstance(row.op, Stream) and row.op.kind in BARE]
    return [Set("stream", tuple(bare), "", STREAM, _moved)] if len(bare) > 1 else []


def _moved(row: Measured) -> object:
    """Rows left out together: those that read and write as much."""
    return (row.op.kind, row.op.read, row.op.write) if isinstance(row.op, Stream) else None
