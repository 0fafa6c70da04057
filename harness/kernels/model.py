"""Models the times of table rows with given efficiency parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.kernels.fit import Array, places
from harness.kernels.schema import Row
from projector.hardware.catalogue import gpu as catalogue_gpu
from projector.hardware.types import Efficiency
from projector.kernels.simulate import Simulated
from projector.mechanisms import Execution

_STEMS = {"gemm": "gemm.loop", "gemm_step": "gemm.loop", "attention": "attention.{way}.loop", "grouped": "grouped.loop"}


def seconds(rows: Sequence[Row], efficiency: Efficiency) -> Array:
    """Returns the seconds of each row of one GPU, (n,), each by the constants of its own family."""
    out = np.zeros(len(rows))
    for family, members in places(rows, lambda row: row.measured.family).items():
        device = catalogue_gpu(rows[members[0]].gpu)
        model = Simulated(device, efficiency, Execution.of(kernels={"gemm": family, "attention": family}), alone=True)
        ops = [op for i in members for op in rows[i].ops]
        owner = np.repeat(members, [len(rows[i].ops) for i in members])
        np.add.at(out, owner, model.times(ops).seconds)
    return out


def constants_of(row: Row, efficiency: Efficiency) -> str:
    """Returns which constants price a row: ``fitted`` for its class, ``general`` fitted ones of its type, ``prior``."""
    if row.kind == "stream":
        kind = str(getattr(row.measured.op, "kind", ""))
        keys = [f"stream.{kind}", "stream"]
    elif row.kind == "grouped":
        backend = str(getattr(row.measured.op, "backend", ""))
        layout = str(getattr(row.measured.op, "layout", ""))
        keys = [f"grouped.loop.{backend}.{layout}", f"grouped.loop.{backend}", "grouped.loop"]
    else:
        way = "backward" if getattr(row.measured.op, "backward", False) else "forward"
        keys = _keys(_STEMS[row.kind].format(way=way), row)
    for key in keys:
        parameter = efficiency.parameters.get(key)
        if parameter is not None:
            if parameter.kind != "fitted":
                return "prior"
            return "fitted" if row.kind in ("grouped", "stream") or row.measured.family in key else "general"
    return "prior"


def _keys(stem: str, row: Row) -> list[str]:
    """Returns the keys of a class, the most specific first, as :func:`projector.kernels.constants.pick` looks them up."""
    dtypes = [row.dtype, "bf16"] if row.dtype == "fp16" else [row.dtype]
    scalings = [row.scaling] if row.scaling else []
    if row.kind == "attention" and getattr(row.measured.op, "head_dim_qk", 0) != getattr(
        row.measured.op, "head_dim_v", 0
    ):
        scalings = [f"d{getattr(row.measured.op, 'head_dim_qk', 0)}"]
    tails = [f"{d}.{s}" for d in dtypes for s in scalings] + dtypes
    return [
        *(key for tail in tails for key in (f"{stem}.{row.measured.family}.{tail}", f"{stem}.{tail}")),
        f"{stem}.{row.measured.family}",
        stem,
    ]
