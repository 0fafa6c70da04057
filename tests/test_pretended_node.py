"""A machine with GPUs, rehearsed: every command of the page for an engineer with a node, on a CPU whose torch says that it
has some (``pretended/sitecustomize.py``). What is proven is the flow and every file that it writes, no figure."""

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from asked import ROOT

PAGE = ROOT / "docs/start/eight-gpus.md"
SMOKE = ROOT.parent / "shared/tools/gpu_smoke.sh"
SMALL = {"num_layers": 2, "hidden_size": 128, "ffn_hidden_size": 256, "num_attention_heads": 4, "vocab_size": 512}
pytestmark = pytest.mark.night


@pytest.fixture
def environment() -> dict[str, str]:
    pytest.importorskip("torch")
    paths = os.pathsep.join(map(str, (ROOT / "tests/pretended", ROOT)))
    gpus = os.environ.get("PRETENDED_GPUS", "8")
    return {**os.environ, "PYTHONPATH": paths, "PRETENDED_GPUS": gpus, "PY": sys.executable, "T": "400"}


def suite(file: Path, gpus: int) -> list[str]:
    """Every run of the suite at sizes of a CPU, in few steps; the ids of those on so many GPUs."""
    told = yaml.safe_load((ROOT / "suites/gpu.yaml").read_text(encoding="utf-8"))
    told["measure"]["repeat"] = 1
    for run in told["measure"]["runs"]:
        moe = {"moe": {**run["model"]["moe"], "moe_ffn_hidden_size": 64}} if "moe" in run["model"] else {}
        run["steps"] = 3
        run["model"] |= {**SMALL, "num_query_groups": 2, **moe}
        run["recipe"]["seq_length"] //= 32
    file.write_text(yaml.safe_dump(told), encoding="utf-8")
    return [run["id"] for run in told["measure"]["runs"] if run["gpus"] <= gpus]


def test_the_page_of_a_node_runs_to_its_end(tmp_path: Path, environment: dict[str, str]) -> None:
    for folder in ("suites", "node"):
        (tmp_path / folder).mkdir()
    ids = suite(tmp_path / "suites/gpu.yaml", int(environment["PRETENDED_GPUS"]))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shutil.copy(ROOT / "measured/logs/cpu_gpt.log.gz", tmp_path / "node/train.log.gz")
    lines = re.findall(r"^python (-m (?:projector|harness) [a-z].*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    for line in lines:
        if "train.log" in line or "megatron" in line:  # the reader's own files, and layers that are not installed here
            continue
        done = subprocess.run(
            [sys.executable, *shlex.split(line)], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode in ((0, 1) if " run " in line else (0,)), (line, done.stdout, done.stderr)
    assert len(list((tmp_path / "node").glob("h100_sxm*.yaml"))) == 3
    assert {file.stem for file in (tmp_path / "node/kernels").glob("*.csv")} >= {
        "gemm",
        "attention",
        "grouped",
        "stream",
    }
    with (tmp_path / "out/gpu/results.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["predictor"] == "benchmark" and row["projected_tgs"]]
    assert {row["run_id"] for row in rows} == set(ids)
    assert (tmp_path / "node.zip").exists()


def test_the_smoke_script_reaches_its_last_line(tmp_path: Path, environment: dict[str, str]) -> None:
    if not SMOKE.exists():
        pytest.skip("the script (../shared) is not on this machine")
    done = subprocess.run(
        ["bash", str(SMOKE)],
        cwd=ROOT,
        env={**environment, "PRETENDED_GPUS": "1", "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    codes = dict(re.findall(r"^(\w+) rc=(\d+)", done.stdout, re.MULTILINE))
    assert codes.pop("bench3") in ("0", "2")  # Megatron-Core's own layers, where it is installed
    assert set(codes.values()) == {"0"}, (done.stdout, done.stderr)
    assert "Traceback" not in done.stdout + done.stderr
