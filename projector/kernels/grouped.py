"""Grouped GEMM of local experts: tiles of every expert padded to the macro-tile, all weights once, a cost per group.

``t = rounds·gemm(batch = experts side by side) + groups·δ(backend)``: one round for a ``fused`` kernel, one expert a
round in a ``loop``, as many as there are streams for ``multi_stream``. The weight gradient reduces over an expert's
rows and writes (or, accumulating, reads and writes) every expert's matrix. δ: ``grouped.group_us.<backend>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from projector.hardware.types import Efficiency, Gpu
from projector.kernels import gemm
from projector.kernels.protocol import FloatArray
from projector.operators.types import Gemm, GroupedGemm

__all__ = ["as_gemm", "constants", "extra"]

_STREAMS = 4  # published: NVIDIA/TransformerEngine runs the GEMMs of GroupedLinear on four cuBLAS streams


def _together(op: GroupedGemm) -> int:
    """Experts that share the device at a time."""
    return {"fused": op.groups, "loop": 1}.get(op.backend, min(op.groups, _STREAMS))


def as_gemm(op: GroupedGemm) -> Gemm:
    """The product of the experts of one round, as a batch; rows are spread evenly, rounded up."""
    rows = -(-op.rows // op.groups)
    m, n, k = (op.n, op.k, rows) if op.layout == "NT" else (rows, op.n, op.k)
    return Gemm(
        name=op.name,
        m=m,
        n=n,
        k=k,
        batch=_together(op),
        dtype=op.dtype,
        scaling=op.scaling,
        layout=op.layout,
        out_bytes=op.out_bytes,
        accumulate=op.accumulate,
    )


def constants(gpu: Gpu, efficiency: Efficiency, family: str, op: GroupedGemm) -> gemm.GemmConstants:
    """The GEMM constants of the family, adapted by ``grouped.loop`` (a factor), ``grouped.memory`` and
    ``grouped.exposed`` (shares).

    Keys may end in ``.<backend>`` and, for ``grouped.loop``, in the layout. The rate stays at or below the peak.
    """
    base = gemm.constants(gpu, efficiency, family, op.dtype, op.scaling, op.layout, op.accumulate)

    def value(stem: str, default: float) -> float:
        keys = (f"{stem}.{op.backend}.{op.layout}", f"{stem}.{op.layout}", f"{stem}.{op.backend}", stem)
        return next((efficiency[key] for key in keys if key in efficiency.parameters), default)

    memory = min(value("grouped.memory", base.bandwidth / gpu.memory_bandwidth), 1.0)
    return replace(
        base,
        rate=min(base.rate * value("grouped.loop", 1.0), gpu.peak_of(op.dtype)),
        bandwidth=gpu.memory_bandwidth * memory,
        exposed=min(value("grouped.exposed", base.exposed), 1.0),
    )


def extra(ops: Sequence[GroupedGemm], times: FloatArray, efficiency: Efficiency) -> FloatArray:
    """Seconds of the whole grouped operator from the time of :func:`as_gemm`, (n,).

    ``grouped.issue_us.<backend>`` is a floor per group, zero unless stated: figures timed through a framework stand at
    the rate at which its host issues experts, which a projection prices apart from the device.
    """
    usual = {"fused": 0.4, "multi_stream": 1.0, "loop": 1.0}
    found = {
        backend: (
            efficiency.get(f"grouped.group_us.{backend}", usual.get(backend, 1.0)) * 1e-6,
            efficiency.get(f"grouped.issue_us.{backend}", 0.0) * 1e-6,
        )
        for backend in {op.backend for op in ops}
    }
    cells = np.array([(o.groups, *found[o.backend], o.groups / _together(o)) for o in ops])
    groups, each, issue, repeats = cells.reshape(-1, 4).T
    total: FloatArray = np.maximum(times * repeats + groups * each, groups * issue)
    return total
