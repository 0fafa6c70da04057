"""What the kernel models should reach, and the best figures known before them for the same tables.

``goal``: held-out MAPE on shapes of training size that this project sets itself. ``before``: MAPE of the best law in a
survey of the same tables: a roofline of three constants or a tile law refitted for each kernel, cross-validated by
(n, k) for GEMMs (``cv``), fitted in-sample for attention and grouped GEMMs (``in-sample``).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.kernels.schema import Row


@dataclass(frozen=True)
class Goal:
    """Rows: of these kinds, GPUs and types (each: all where empty)."""

    title: str
    goal: float
    kind: str
    gpus: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    before: float | None = None
    measure: str = ""
    layouts: tuple[str, ...] = ()
    backward: bool | None = None


#: Of a GPU whose own figures entered no constant.
TRANSFER = 0.15

GOALS = (
    Goal("GEMM A100", 0.045, "gemm", ("a100_pcie_80gb", "a100_sxm_80gb"), (), 0.051, "cv"),
    Goal("GEMM H100", 0.05, "gemm", ("h100_sxm", "h100_pcie"), (), 0.052, "in-sample"),
    Goal("GEMM B200", 0.09, "gemm", ("b200",), (), 0.108, "cv"),
    Goal("GEMM MI300X fp8", 0.05, "gemm", ("mi300x",), ("fp8",), 0.07, "cv"),
    Goal("GEMM MI308X", 0.06, "gemm", ("mi308x",), (), 0.098, "cv"),
    Goal("GEMM MI355X bf16", 0.07, "gemm", ("mi355x",), ("bf16", "fp16"), 0.181, "cv"),
    Goal("GEMM MI355X fp8", 0.07, "gemm", ("mi355x",), ("fp8",), 0.128, "cv"),
    Goal("GEMM MI355X MXFP4", 0.08, "gemm", ("mi355x",), ("mxfp4",), 0.163, "cv"),
    Goal("attention MI355X forward", 0.05, "attention", ("mi355x",), (), 0.04, "in-sample", backward=False),
    Goal("attention MI355X backward", 0.05, "attention", ("mi355x",), (), 0.034, "in-sample", backward=True),
    Goal("attention MI300X forward", 0.05, "attention", ("mi300x",), (), 0.044, "in-sample", backward=False),
    Goal("attention MI300X backward", 0.05, "attention", ("mi300x",), (), 0.068, "in-sample", backward=True),
    Goal("attention H100 forward", 0.05, "attention", ("h100_sxm",), (), 0.047, "in-sample", backward=False),
    Goal("attention H100 backward", 0.05, "attention", ("h100_sxm",), (), None, "", backward=True),
    Goal("attention B200 forward", 0.05, "attention", ("b200",), (), 0.051, "in-sample", backward=False),
    Goal("attention B200 backward", 0.05, "attention", ("b200",), (), 0.034, "in-sample", backward=True),
    Goal("attention GB200", 0.05, "attention", ("gb200",)),
    Goal("attention GB300", 0.05, "attention", ("gb300",)),
    Goal("attention H200", 0.05, "attention", ("h200",)),
    Goal("attention A100", 0.05, "attention", ("a100_pcie_80gb",), (), 0.089, "in-sample"),
    Goal("grouped forward", 0.09, "grouped", (), (), 0.109, "in-sample", ("TN",)),
    Goal("grouped dgrad", 0.09, "grouped", (), (), 0.091, "in-sample", ("NN",)),
    Goal("grouped wgrad", 0.09, "grouped", (), (), 0.19, "in-sample", ("NT",)),
    Goal("streams", 0.10, "stream"),
)


def matches(goal: Goal, row: Row) -> bool:
    op = row.measured.op
    return (
        row.kind == goal.kind
        and (not goal.gpus or row.gpu in goal.gpus)
        and (not goal.dtypes or row.dtype in goal.dtypes)
        and (not goal.layouts or getattr(op, "layout", "") in goal.layouts)
        and (goal.backward is None or getattr(op, "backward", None) == goal.backward)
    )
