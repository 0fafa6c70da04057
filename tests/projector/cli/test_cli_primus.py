"""A Primus experiment on the command line, as its quick start has it: one file and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from projector.cli import run
from tests.projector.intake.primus_tree import checkout, experiment


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRIMUS_GPU_ARCH", "NNODES", "GPUS_PER_NODE", "PRIMUS_PATH", "PRIMUS_ROOT"):
        monkeypatch.delenv(name, raising=False)


def test_one_file_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = experiment(checkout(tmp_path), "dense", seq_length=4096)
    assert run(["performance", "--config", str(file)]) == 0
    text = capsys.readouterr().out
    assert "AMD Instinct MI300X" in text
    assert "cluster=mi300x (the folder MI300X)" in text
    assert "recompute none" in text


@pytest.mark.parametrize("flag", ["--gpu-arch", "--cluster"])
def test_a_stated_gpu_is_no_assumption(tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    file = experiment(checkout(tmp_path), "dense", seq_length=4096)
    assert run(["performance", "--config", str(file), flag, "mi355x"]) == 0
    text = capsys.readouterr().out
    assert "MI355X" in text
    assert "cluster=" not in text


def test_the_batch_of_torchtitan_follows_the_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(experiment(checkout(tmp_path), "llama3.1_8B", "torchtitan", training={"local_batch_size": 2}))
    assert run(["performance", "--config", file, "--gpus", "32"]) == 0
    assert "global batch 64 " in capsys.readouterr().out
    assert run(["performance", "--config", file, "--gpus", "32", "--global-batch-size", "256"]) == 0
    assert "global batch 256 " in capsys.readouterr().out


def test_what_is_refused_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = experiment(checkout(tmp_path), "dense", model_type="flux_schnell")
    assert run(["performance", "--config", str(file)]) != 0
    assert "not a language model" in capsys.readouterr().err


def test_the_variable_of_primus_goes_before_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIMUS_GPU_ARCH", "gfx950")
    file = experiment(checkout(tmp_path), "dense", seq_length=4096)
    assert run(["performance", "--config", str(file)]) == 0
    text = capsys.readouterr().out
    assert "cluster=mi355x (PRIMUS_GPU_ARCH)" in text
    assert "the folder" not in text
