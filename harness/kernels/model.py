"""Models the times of table rows with given efficiency parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from harness.kernels.fit import Array, places
from harness.kernels.schema import Row
from projector.hardware.catalogue import gpu as catalogue_gpu
from projector.hardware.types import Efficiency
from projector.kernels.constants import keys
from projector.kernels.simulate import Simulated
from projector.mechanisms import Execution
from projector.operators.types import Attention, GroupedGemm, Stream


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
    key = next((key for key in _keys(row) if key in efficiency.parameters), None)
    if key is None or efficiency.parameters[key].kind != "fitted":
        return "prior"
    return "fitted" if row.kind in ("grouped", "stream") or row.measured.family in key else "general"


def _keys(row: Row) -> Iterable[str]:
    """Returns the keys under which the constants of a row are looked up, the most specific first."""
    op, family = row.measured.op, row.measured.family
    if isinstance(op, Stream):
        return [f"stream.{op.kind}", "stream"]
    if isinstance(op, GroupedGemm):
        return [f"grouped.loop.{op.backend}.{op.layout}", f"grouped.loop.{op.backend}", "grouped.loop"]
    if isinstance(op, Attention):
        scaling = f"d{op.head_dim_qk}" if op.head_dim_qk != op.head_dim_v else ""
        return keys(f"attention.{'backward' if op.backward else 'forward'}.loop", family, op.dtype, scaling)
    return keys("gemm.loop", family, row.dtype, row.scaling)


def of_each_gpu(rows: Sequence[Row], efficiency: Callable[[str], Efficiency]) -> Array:
    """Returns the seconds of each row, (n,), with the parameters of its GPU, by the GPU's name."""
    out = np.zeros(len(rows))
    for name, members in places(rows, lambda row: row.gpu).items():
        out[members] = seconds([rows[i] for i in members], efficiency(name))
    return out
