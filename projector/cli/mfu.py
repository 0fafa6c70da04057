"""Counts the MFU of a step by each published formula of FLOP: a run prints another figure under every framework."""

from __future__ import annotations

from projector.cli.tables import tabled
from projector.dataclass import dataclass
from projector.errors import Unsupported
from projector.frameworks.flops import flops_per_token, formula_for, formulas
from projector.io.table import Table
from projector.projection import Projection


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A step counted by ``formula``: ``gflop`` a token, ``tflops`` of a GPU, ``mfu`` over the dense bf16 peak; ``own``:
    whether the framework of the run prints this one."""

    formula: str
    gflop: float
    tflops: float
    mfu: float
    own: bool


def counted(projection: Projection) -> list[Counted]:
    """Returns the step counted by every formula that knows a model of this kind, the largest count first."""
    workload, peak = projection.resolved.workload, projection.cluster.gpu.peak_of("bf16")
    try:
        printed = formula_for(workload.framework, workload.framework_date)
    except Unsupported:
        printed = ""
    counts = []
    for name in formulas():
        try:
            flops = flops_per_token(workload, name)
        except Unsupported:
            continue
        rate = flops * projection.tgs
        own = name == printed
        counts.append(Counted(formula=name, gflop=flops / 1e9, tflops=rate / 1e12, mfu=rate / peak, own=own))
    return sorted(counts, key=lambda each: -each.gflop)


def table(counts: list[Counted]) -> Table:
    """Returns a table with one line for each formula."""
    return tabled("mfu", counts, printed=lambda own: "what this framework prints" if own else "")
