"""Which rows of a kernel table are fitted together, and which parameters they fit: GEMM.

Each parameter: (prior, lowest, highest).
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.kernels.fit import Set
from projector.kernels.tables import Measured
from projector.operators.types import Gemm

# name: (prior, lowest, highest)
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
MANY = 40  # rows that can carry all constants
SOME = 12  # large rows that a library needs for a rate of its own
GEMM_FEW = {name: GEMM[name] for name in ("gemm.loop",)}

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


def sets(rows: Sequence[Measured]) -> list[Set]:
    chosen: dict[tuple[str, str, str], list[Measured]] = {}
    for row in rows:
        if isinstance(row.op, Gemm):
            dtype = "bf16" if row.op.dtype == "fp16" else row.op.dtype
            chosen.setdefault((row.family, dtype, row.op.scaling), []).append(row)
    made = []
    for (family, dtype, scaling), few in sorted(chosen.items()):
        general = (family, dtype, scaling) in GENERAL
        least = 0.0 if len(few) >= MANY else 1e11 if general else 1e10
        big = [r for r in few if r.op.flops > least]
        if len(big) < (3 if general else SOME):
            continue
        plain = scaling == dtype or (general and scaling in ("rowwise", "tensorwise"))
        tail = ".".join(word for word in ("" if general else family, dtype, "" if plain else scaling) if word)
        names = GEMM if len(few) >= MANY and len({nk(row) for row in few}) >= 5 else GEMM_FEW
        if not any(row.condition == "framework average" for row in few):
            names = {n: p for n, p in names.items() if "burst" not in n}  # long profiled runs show the sustained clock
        made.append(
            Set(
                f"gemm {family} {dtype} {scaling}", tuple(big), family, {f"{n}.{tail}": p for n, p in names.items()}, nk
            )
        )
    return made


def nk(row: Measured) -> object:
    return (row.op.n, row.op.k, row.op.layout) if isinstance(row.op, Gemm) else None
