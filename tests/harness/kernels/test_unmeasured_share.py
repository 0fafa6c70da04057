"""The share of a step in kernels without a measured table."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.evidence.suite import load
from harness.kernels import suite_shares, unmeasured
from harness.kernels.unmeasured import class_of, share
from harness.report.kernel_view import unmeasured as view
from projector import project
from projector.hardware import catalogue
from projector.operators.types import Attention, Gemm, Stream
from projector.workload.workload import Workload
from tests import workloads


def workload(precision: str = "bf16") -> Workload:
    return workloads.workload(tp=2, global_batch_size=16, precision=precision)


def test_shares_are_parts_of_the_step() -> None:
    cluster = catalogue.default_cluster("b200")
    found = share(project(workload(), cluster), cluster)
    assert 0.2 < found.measured < 1.0
    assert found.unmeasured == pytest.approx(sum(found.by_kind.values()))
    assert found.measured + found.unmeasured < 1.05


def test_a_gpu_without_tables_measures_nothing() -> None:
    cluster = catalogue.default_cluster("v100_sxm_32gb")
    found = share(project(workload("fp16"), cluster), cluster)
    assert found.measured == 0.0
    assert set(found.by_kind) == {"gemm", "attention", "stream"}


def test_a_type_that_was_not_measured_counts_as_unmeasured() -> None:
    cluster = catalogue.default_cluster("b200")
    plain, narrow = (share(project(workload(p), cluster), cluster) for p in ("bf16", "fp8"))
    assert "gemm" not in plain.by_kind
    assert narrow.by_kind["gemm"] > 0.1  # cuBLASLt's FP8 products have no table on this GPU


def test_classes() -> None:
    op = Gemm(name="", m=1, n=1, k=1, dtype="fp16")
    assert class_of(op, "ck_preshuffled", "") == ("gemm", "ck", "bf16", "")
    assert class_of(Stream(name="", kind="norm", read=1, write=1), "", "") == ("stream", "norm")
    flash = Attention(name="", batch=1, heads=1, kv_heads=1, seq_q=1, seq_k=1, head_dim_qk=1, head_dim_v=1)
    assert class_of(flash, "", "aiter_a16") == class_of(flash, "", "aiter_a32")


def test_by_suite_and_gpu(project_folder: Path) -> None:
    (found, *_) = suite_shares.shares([load(project_folder / "suites" / "tiny.yaml")])
    assert found.suite == "tiny"
    assert found.runs >= 1
    table = view([found])
    assert table.rows[0][:3] == ("tiny", found.gpu, str(found.runs))
    assert unmeasured.Share(0.5, 0.25, {}).unmeasured == 0.25
