"""A probe of the CPU makes an entry that the catalogue loads and that a small model is projected on."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from projector.benchmark.device import Device
from projector.benchmark.entry import BEST_SHARE, Entry, entry
from projector.benchmark.entry_files import write
from projector.benchmark.probe import Probed, probe
from projector.benchmark.stopwatch import Stopwatch
from projector.cli import run as projector
from projector.cli.configuration import workload
from projector.errors import InputError
from projector.hardware import catalogue, efficiency
from projector.projection import project


@pytest.fixture(scope="module")
def probed(cpu: Device) -> Probed:
    return probe(cpu, Stopwatch(cpu, samples=3, flush=False, most=0.005, warm=0.0), largest=128)


@pytest.fixture(scope="module")
def made(probed: Probed) -> Entry:
    return entry(probed, "here")


def test_everything_is_measured_or_said_to_be_assumed(probed: Probed, made: Entry) -> None:
    best = max(taken.flop_rate for taken in probed.gemms if getattr(taken.op, "dtype", "") == "bf16")
    assert made.gpu.peak["bf16"] == pytest.approx(best / BEST_SHARE)
    assert made.gpu.memory_bandwidth > 0
    assert probed.host_launch > 0
    assert {each.kind for each in made.origins.values()} <= {"measured", "derived", "assumed"}
    assert made.origins["tdp_watts"].kind == "assumed"
    for key, each in made.parameters.items():
        assert each.value > 0 or key == "gemm.burst", key
        assert each.low is None or each.low <= each.value <= (each.high or each.value) * (1 + 1e-9), key


def test_shares_are_shares(made: Entry) -> None:
    for key, each in made.parameters.items():
        if key.startswith(("stream.", "gemm.loop", "attention.")) and not key.endswith("_us"):
            assert 0 < each.value <= 1, key


def test_the_entry_loads_and_a_model_is_projected(made: Entry, small: Path, tmp_path: Path) -> None:
    files = write(made, tmp_path / "hardware", "torch, here")
    cluster = catalogue.cluster(str(files[-1]))
    assert cluster.gpu.name == "here"
    assert cluster.gpu.memory_bandwidth == pytest.approx(made.gpu.memory_bandwidth, rel=1e-4)
    loaded = efficiency.of(cluster.gpu)
    assert loaded["gemm.loop.bf16"] == pytest.approx(made.parameters["gemm.loop.bf16"].value, rel=1e-4)
    assert loaded.parameters["stream.copy"].kind == "measured"
    step = project(workload(str(small)), cluster).step_seconds
    assert step > 0


def test_the_command_writes_what_performance_takes(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], cpu: Device
) -> None:
    out = tmp_path / "hw"
    flags = ["--device", "cpu", "--largest", "128", "--samples", "3", "--no-flush", "--name", "Mine 1"]
    assert projector(["probe", *flags, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "assumed:" in shown
    assert "measured" in shown
    assert yaml.safe_load((out / "mine_1.yaml").read_text(encoding="utf-8"))["name"] == "mine_1"
    cluster = str(out / "mine_1.cluster.yaml")
    assert projector(["performance", "--config", str(small), "--cluster", cluster, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_a_device_whose_efficiency_file_is_gone_says_so(made: Entry, small: Path, tmp_path: Path) -> None:
    files = write(made, tmp_path, "torch, here")
    files[1].unlink()
    with pytest.raises(InputError, match=r"here\.efficiency\.yaml"):
        project(workload(str(small)), catalogue.cluster(str(files[-1])))


def test_an_unwritable_folder_is_said_before_anything_is_timed(capsys: pytest.CaptureFixture[str], cpu: Device) -> None:
    assert projector(["probe", "--device", "cpu", "--out", "/proc/nowhere"]) == 2
    assert "--out" in capsys.readouterr().err


def test_simulation_does_not_import_torch(small: Path, root: Path) -> None:
    code = (
        "import sys; from projector.cli import run; "
        f"assert run(['performance', '--config', {str(small)!r}, '--json']) == 0; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, stdout=subprocess.DEVNULL)


def test_a_device_that_hardly_runs_is_refused(probed: Probed) -> None:
    slow = tuple(replace(each, timing=replace(each.timing, seconds=each.timing.seconds * 1e6)) for each in probed.gemms)
    with pytest.raises(ValueError, match="less than one operation a clock"):
        entry(replace(probed, gemms=slow), "here")
