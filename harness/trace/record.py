"""Products and attention of a trace as rows of kernel tables (``measured/kernels/<gpu>``)."""

from __future__ import annotations

from pathlib import Path

from harness.trace.study import Study
from projector.benchmark.table_file import TableFile
from projector.operators.types import Gemm

#: Families of kernel tables by provider of the kernel; of the others no table is kept.
_FAMILIES = {
    "cuBLASLt": "cublaslt",
    "cuBLAS": "cublaslt",
    "hipBLASLt": "hipblaslt",
    "FA2": "fa2",
    "FA3": "fa3",
    "FA4": "fa4",
    "cuDNN": "cudnn",
    "AITER": "aiter",
    "CK": "ck",
    "AOTriton": "aotriton",
}


def record(found: Study, folder: Path, gpu: str) -> tuple[int, int]:
    """Appends the shapes that are known whole to ``folder/gpu``; (rows added, shapes left out: operands whose place in
    memory or whose library the trace does not tell). Raises :class:`InputError` for a table that cannot be added to."""
    tables = {kind: TableFile(folder / gpu, kind) for kind in ("gemm", "attention")}
    added = left = 0
    for row in found.shapes:
        table = tables["gemm" if isinstance(row.op, Gemm) else "attention"]
        family = _FAMILIES.get(row.provider, "")
        if not family or not row.laid or row.seconds <= 0:
            left += 1
        elif not table.holds(row.op, family):
            table.add(row.op, family, row.seconds, 0.0, f"live: median of {row.calls} in a traced step", _source(found))
            added += 1
    for table in tables.values():
        table.save()
    return added, left


def _source(found: Study) -> str:
    return f"trace of a training step on {found.trace.gpu}: {Path(found.trace.path).name}"
