"""Systems of transformer-perf-estimates: read in their own words, refused in one error, and as fast as they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from projector import project
from projector.__main__ import main
from projector.hardware import catalogue
from projector.hardware.types import Cluster
from projector.search.sweep import grid, points
from tests.workloads import workload

# ShashankSubramanian/transformer-perf-estimates@54278b0, systems/config-B200.json
B200: dict[str, Any] = {
    "matrix_flops_fp16": 2500, "vector_flops_fp32": 169, "vector_flops_fp16": 339, "hbm_bandwidth": 8000,
    "hbm_capacity": 192, "nvlink_bandwidth": 900, "nvlink_eff": 0.7, "nvlink_latency": 2.5e-06, "nvlink_size": 8,
    "ib_bandwidth": 100, "ib_eff": 0.7, "ib_latency": 5e-06, "nic_factor": 1, "empirical": False, "summa_nb": 4,
    "element_size": 2e-09, "mask_element_size": 1e-09, "flops_units": 1e-12,
}  # fmt: skip
CASE = ("--model", "llama3.1_8b", "--gpus", "64", "--tp", "2", "--mbs", "1", "--gbs", "256", "--seq-length", "4096")


def described(folder: Path, **changed: Any) -> str:
    file = folder / "mine.json"
    file.write_text(json.dumps({**B200, **changed}))
    return str(file)


def step(cluster: Cluster) -> float:
    return project(workload("llama3.1_8b", 64, global_batch_size=256, tp=8), cluster).step_seconds


def test_its_figures_are_ours(tmp_path: Path) -> None:
    found = catalogue.cluster(described(tmp_path, nic_factor=2))
    assert found.gpu.peak_of("bf16") == pytest.approx(2.5e15)
    assert (found.gpu.memory_bandwidth, found.gpu.memory_bytes) == (8e12, 192e9)
    assert (found.intra.bandwidth, found.intra.size, found.intra.latency) == (9e11, 8, 2.5e-6)
    assert (found.inter.bandwidth, found.inter.latency, found.gpus_per_node, found.gpus_per_host) == (2e11, 5e-6, 8, 8)
    assert catalogue.gpu(described(tmp_path)).vendor == "nvidia"


def test_a_better_system_is_never_slower(tmp_path: Path) -> None:
    usual = step(catalogue.cluster(described(tmp_path)))
    for key, value in (
        ("matrix_flops_fp16", 5000),
        ("hbm_bandwidth", 16000),
        ("ib_bandwidth", 200),
        ("nvlink_size", 64),
    ):
        assert step(catalogue.cluster(described(tmp_path, **{key: value}))) <= usual * (1 + 1e-9)
    assert step(catalogue.cluster(described(tmp_path, nvlink_size=1))) > usual


def test_it_is_taken_wherever_a_cluster_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = described(tmp_path)
    for flag in ("--gpu", "--cluster"):
        assert main(["performance", *CASE, flag, file, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["projections"]["simulate"]["step_seconds"] > 0
    (tmp_path / "grid.yaml").write_text(
        "{sweep: 1, model: llama3.1_8b, system: mine.json, gpus: 8, "
        "recipe: {micro_batch_size: 1, global_batch_size: 16, seq_length: 4096}}"
    )
    made = grid.read(tmp_path / "grid.yaml")
    (row,) = points.rows(list(made.points()))
    assert row["status"] == "ok"
    before = grid.key_of(next(made.points()))
    described(tmp_path, hbm_bandwidth=4000)
    grid._FILES.clear()
    assert grid.key_of(next(made.points())) != before


def test_a_wrong_system_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = described(tmp_path, hbm_bandwidth=-1, colour="red", nvlink_size=7.5)
    assert main(["performance", *CASE, "--cluster", wrong]) == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 3)
    for key in ("hbm_bandwidth", "colour", "nvlink_size"):
        assert f"{wrong}: {key}" in said.err
