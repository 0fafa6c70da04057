"""MFU of one step by each published count of FLOP: the same run prints another figure under every framework."""

from __future__ import annotations

from dataclasses import asdict

from projector.dataclass import dataclass
from projector.errors import Unsupported
from projector.frameworks.flops import flops_per_token, formula_for, formulas
from projector.io.table import Table, figure, listed, number1, percent, text
from projector.projection import Projection


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A step counted by ``formula``: ``gflop`` a token, ``tflops`` of a GPU, ``mfu`` over the dense bf16 peak; ``own``: the
    framework of the run prints it."""

    formula: str
    gflop: float
    tflops: float
    mfu: float
    own: bool


def counted(made: Projection) -> list[Counted]:
    """By every formula that knows a model of this kind, the largest count first."""
    workload, peak = made.resolved.workload, made.cluster.gpu.peak_of("bf16")
    try:
        own = formula_for(workload.framework, workload.framework_date)
    except Unsupported:
        own = ""
    found = []
    for name in formulas():
        try:
            flops = flops_per_token(workload, name)
        except Unsupported:
            continue
        rate = flops * made.tgs
        found.append(Counted(formula=name, gflop=flops / 1e9, tflops=rate / 1e12, mfu=rate / peak, own=name == own))
    return sorted(found, key=lambda each: -each.gflop)


def table(found: list[Counted]) -> Table:
    """Returns one line a formula."""
    columns = (
        text("counted by", "formula"),
        figure("GFLOP a token", "gflop", number1),
        figure("TFLOP/s a GPU", "tflops", number1),
        figure("MFU", "mfu", percent),
        text("", lambda each: "what this framework prints" if each.own else ""),
    )
    note = (
        "Of the projected step, over the dense bf16 peak. A formula that does not know layers of this kind is left out."
    )
    return listed("MFU by each published formula", found, columns, note)


def as_document(found: list[Counted]) -> list[dict[str, object]]:
    return [asdict(each) for each in found]
