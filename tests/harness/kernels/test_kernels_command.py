"""``python -m harness kernels`` and ``calibrate --kernels`` as a user runs them."""

import csv
import json
from pathlib import Path

import command_line
import pytest
from asked import ROOT, put, says
from tabled import tabled

from harness.cli.kernels import shares
from harness.evidence.suite import load
from harness.kernels import table_coverage
from harness.kernels.table_coverage import share
from harness.report.kernel_view import unmeasured as view
from projector import project
from projector.hardware import catalogue
from projector.workload.workload import Workload
from tests import workloads

TABLES = ROOT / "measured" / "kernels"


def written(folder: Path, *arguments: str) -> tuple[command_line.Done, dict[str, bytes]]:
    done = command_line.run("harness", "kernels", *arguments, "--out", folder, env={"COLUMNS": "120"})
    assert done.returncode == 0, done.stderr
    return done, {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_table_is_scored_and_written(tmp_path: Path) -> None:
    done, texts = written(tmp_path, str(TABLES / "a100_pcie_80gb" / "gemm.csv"), "--curves")
    assert max(map(len, done.stdout.splitlines())) <= 120
    assert set(texts) == {
        *("kernels.md", "kernels.csv", "kernels.json", "errors.png", "scatter-gemm.png"),
        "gemm-a100_pcie_80gb.png",
    }
    assert all(len(data) < 150_000 for name, data in texts.items() if name.endswith(".png"))
    rows = list(csv.DictReader(texts["kernels.csv"].decode().splitlines()))
    assert len(rows) == 124
    assert {row["heldout_by"] for row in rows} == {"refit"}
    for row in rows:
        wrong = float(row["heldout_us"]) / float(row["measured_us"]) - 1
        assert float(row["heldout_error"]) == pytest.approx(wrong, abs=2e-5)
    (only,) = json.loads(texts["kernels.json"])["classes"]
    assert only["errors"]["> 1e10"]["heldout"]["mape"] < 0.06
    assert only["errors"]["> 1e10"]["heldout"]["mape"] < only["errors"]["> 1e10"]["fixed"]["mape"]


def test_an_unseen_table_says_that_its_shipped_column_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    lines = [f"me,B200,bf16,gemm,{m},8192,8192,cuBLAS,,{1200 * m / (m + 300)}" for m in (2048, 4096, 8192, 16384)]
    lines.append("me,TPU v5p,bf16,gemm,4096,8192,8192,XLA,,400")
    path.write_text("source,gpu,dtype,op,m,n,k,library,time_us,tflops\n" + "\n".join(lines), encoding="utf-8")
    (done, texts), (_, again) = (written(tmp_path / name, str(path), "--format", "json", "md") for name in ("a", "b"))
    assert texts == again, "alike each time"
    says(done.stdout, "no shipped constant was fitted on", "a device that the catalogue does not have: TPU v5p")
    assert sorted(texts) == ["kernels.json", "kernels.md"]
    found = json.loads(texts["kernels.json"])
    assert found["rows"] == 4
    assert not found["classes"][0]["source_fitted"]


def test_nothing_to_model_is_no_error(shared: Path) -> None:
    said = command_line.told("harness", "kernels", shared / "kernels" / "collectives.csv")
    assert "no row can be modelled, 178 were left out" in said


@pytest.mark.parametrize(("arguments", "words"), tabled("refusals", "kernels_command"))
def test_wrong_input_ends_with_2_and_says_all(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    says(command_line.refused("harness", *arguments), *words)


def test_constants_are_fitted_without_writing(root: Path) -> None:
    folder = root / "projector" / "hardware" / "efficiency"
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    says(command_line.told("harness", "calibrate", "--kernels", "h800", "--dry-run"), "nothing is written", "grouped")
    assert before == {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def test_families_without_constants_of_their_own_are_named(tmp_path: Path) -> None:
    path = put(
        tmp_path / "mine.csv", "gpu,dtype,op,m,n,k,library,time_us\nMI300X,bf16,gemm,4096,8192,8192,My Library,1500\n"
    )
    said = command_line.told("harness", "kernels", path)
    assert "constants of some classes of my_library are" in " ".join(said.split())


# The share of a step in kernels without a measured table.


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


def test_by_suite_and_gpu(project_folder: Path) -> None:
    ((suite, gpu, of_runs), *_) = found = list(shares([load(project_folder / "suites" / "tiny.yaml")]))
    assert (suite, len(of_runs) >= 1) == ("tiny", True)
    assert view(found[:1]).rows[0][:3] == ("tiny", gpu, str(len(of_runs)))
    assert table_coverage.Share(0.5, {"gemm": 0.25}).unmeasured == 0.25
