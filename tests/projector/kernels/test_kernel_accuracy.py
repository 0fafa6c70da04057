"""How far the analytical models are from the measured tables, by kernel class: levels achieved, plus margin.

Held-out errors of the same constants are printed by ``harness calibrate --kernels`` and kept in the efficiency files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.kernels.simulate import Simulated
from projector.kernels.tables import Measured, read
from projector.mechanisms import Execution
from projector.operators.types import Attention, Gemm, GroupedGemm


def errors(root: Path, name: str, family: str, kind: type, least: float, **fields: object) -> np.ndarray:
    def wanted(row: Measured) -> bool:
        if not isinstance(row.op, kind) or row.family != family or row.op.flops <= least:  # type: ignore[attr-defined]
            return False
        return all(getattr(row.op, key) == value for key, value in fields.items())

    rows = [row for row in read(root / "measured" / "kernels" / name) if wanted(row)]
    assert len(rows) >= 5
    model = Simulated(gpu(name), load(name), Execution.of(kernels={"gemm": family, "attention": family}), alone=True)
    return model.times([row.op for row in rows]).seconds / np.array([row.seconds for row in rows]) - 1.0


@pytest.mark.parametrize(
    ("name", "family", "dtype", "scaling", "mape"),
    [
        ("a100_pcie_80gb", "cublaslt", "bf16", "", 0.045),
        ("b200", "cublaslt", "bf16", "", 0.11),
        ("mi300x", "ck", "fp8", "blockwise", 0.05),
        ("mi355x", "flydsl", "bf16", "", 0.065),
        ("mi308x", "ck_preshuffled", "fp8", "rowwise", 0.065),
        ("mi355x", "hipblaslt", "bf16", "", 0.07),
        ("mi355x", "asm", "bf16", "", 0.055),
        ("mi355x", "ck", "fp8", "blockwise", 0.06),
        ("mi355x", "flydsl_preshuffled", "fp8", "rowwise", 0.07),
        ("mi355x", "asm", "mxfp4", "mxfp4", 0.065),
        ("mi355x", "hipkittens", "mxfp8", "mxfp8", 0.08),
    ],
)
def test_gemm_above_ten_gigaflop(root: Path, name: str, family: str, dtype: str, scaling: str, mape: float) -> None:
    error = errors(root, name, family, Gemm, 1e10, dtype=dtype, scaling=scaling)
    assert np.abs(error).mean() < mape
    assert abs(error.mean()) < 0.06


@pytest.mark.parametrize(
    ("name", "family", "backward", "mape"),
    [
        ("a100_pcie_80gb", "fa2", False, 0.08),
        ("a100_pcie_80gb", "fa2", True, 0.10),
        ("h100_sxm", "fa2", False, 0.08),
        ("h100_sxm", "fa3", False, 0.08),
        ("h100_sxm", "fa3", True, 0.05),
        ("h100_sxm", "cudnn", False, 0.10),
        ("mi300x", "aiter", False, 0.05),
        ("mi300x", "aiter", True, 0.07),
        ("mi355x", "aiter", False, 0.05),
        ("mi355x", "aiter", True, 0.05),
        ("b200", "fa4", False, 0.08),
    ],
)
def test_attention_above_a_hundred_gigaflop(root: Path, name: str, family: str, backward: bool, mape: float) -> None:
    error = errors(root, name, family, Attention, 1e11, backward=backward)
    assert np.abs(error).mean() < mape


@pytest.mark.parametrize(
    ("name", "family", "mape"),
    [("b200", "multi_stream", 0.16), ("a100_pcie_80gb", "multi_stream", 0.07), ("h800", "deepgemm", 0.09)],
)
def test_grouped(root: Path, name: str, family: str, mape: float) -> None:
    assert np.abs(errors(root, name, family, GroupedGemm, 0.0)).mean() < mape
