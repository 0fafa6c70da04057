"""Outputs that full recompute keeps: what they cost, and the verdicts of measured runs with and without room for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.evidence import dataset
from projector import project
from projector.errors import InputError
from projector.hardware import catalogue
from tests.workloads import workload

NAMES = ("qkv_proj", "out_proj", "mlpwi", "mlpwo", "context")
RUNS = Path(__file__).resolve().parents[3] / "measured" / "runs" / "maxtext_dsv3_mi355x.yaml"


def peak(model: str, *saved: str, **fields: object) -> float:
    stated = {"recompute_granularity": "full", "recompute_saved": saved or None, **fields}
    return project(workload(model, 64, "maxtext", **stated), catalogue.default_cluster("mi355x")).memory.required


@pytest.mark.parametrize("model", ["llama3_70b", "deepseek_v2_lite"])
def test_each_kept_output_costs_memory(model: str) -> None:
    fields = {"ep": 8} if model.startswith("deepseek") else {}
    nothing, everything = peak(model, **fields), peak(model, *NAMES, **fields)
    each = [peak(model, name, **fields) - nothing for name in NAMES]
    assert min(each) > 0.0
    assert everything - nothing == pytest.approx(sum(each), rel=0.35)


def test_one_kept_output_has_the_bytes_of_its_tensor() -> None:
    """80 layers of [4096, 8192] in bf16."""
    assert peak("llama3_70b", "out_proj") - peak("llama3_70b") == pytest.approx(80 * 4096 * 8192 * 2, rel=0.1)


def test_what_is_kept_belongs_to_full_recompute() -> None:
    with pytest.raises(InputError, match="recompute_saved"):
        peak("llama3_70b", "context", recompute_granularity="selective")


def test_measured_policies_fit_or_not_as_they_did() -> None:
    """DeepSeek-V3 on 64 MI355X: keeping the output projection ran, every larger policy did not."""
    runs = [r for r in dataset.read(RUNS) if r.recipe is not None and r.recipe.recompute_saved]
    assert len(runs) >= 20
    cluster = catalogue.default_cluster("mi355x")
    for run in runs:
        ran = run.measured.status != "out-of-memory"
        assert project(run.workload, cluster).memory.fits == ran, run.id
