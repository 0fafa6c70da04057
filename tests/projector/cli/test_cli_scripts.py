"""Launch scripts on the command line: what starts them, what they assume, how they are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_command import MIXTRAL, projector

from projector.cli import run
from tests.projector.intake.primus_tree import checkout, experiment

SCRIPT = """#!/bin/bash
# old: --tensor-model-parallel-size 8
L=${1:?the number of layers}
while [[ $# -gt 1 ]]; do case $2 in --tp) TP=$3; shift 2;; *) exit 1;; esac; done
torchrun --nnodes $NNODES --nproc_per_node 8 pretrain_gpt.py --num-layers $L --hidden-size 4096 --num-attention-heads 32 \\
  --seq-length 4096 --micro-batch-size 1 --tensor-model-parallel-size ${TP:-1} --bf16 --swiglu --use-distributed-optimizer
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "train.sh"
    file.write_text(SCRIPT)
    return str(file)


def made(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, object]:
    assert run(["performance", "--json", "--gpu-arch", "h100", *flags]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_arguments_and_environment_start_a_script(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = made(capsys, "--config", script, "--args", "16 --tp 4", "--env", "NNODES=4", "X=a b")
    assumed = str(found["assumed"])
    for text in ("gpus=32 (4 nodes × 8 processes)", "NNODES=4", "train.sh, line 5"):
        assert text in assumed
    workload = json.dumps(found)
    assert '"gpus": 32' in workload
    assert '"tp": 4' in workload
    assert '"global_batch_size": 8' in workload


def test_a_vocabulary_that_nothing_names_says_what_it_is_worth(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain = str(made(capsys, "--config", script, "--args", "16", "--env", "NNODES=1")["assumed"])
    assert "with 32k" in plain
    assert "with 256k" in plain
    Path(script).write_text(SCRIPT.replace("--bf16", "--bf16 --tokenizer-type Llama2Tokenizer"))
    named = str(made(capsys, "--config", script, "--args", "16", "--env", "NNODES=1")["assumed"])
    assert "vocab_size=32000 (Llama2Tokenizer)" in named
    assert "256k" not in named


def test_the_number_of_gpus_may_come_from_the_flag(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = made(capsys, "--config", script, "--args", "16", "--gpus", "64")
    assert '"gpus": 64' in json.dumps(found)
    assert '"global_batch_size": 64' in json.dumps(found)
    assert "gpus=" not in str(found["assumed"])


def test_refusals_name_the_flag(script: str) -> None:
    assert any("--args" in line or "--env 1" in line for line in projector("performance", "--config", script).refused())
    assert any(
        "--env NNODES" in line
        for line in projector("performance", "--config", script, "--args", "16", "--gpu-arch", "h100").refused()
    )
    wrong = projector("performance", "--config", script, "--env", "NNODES").refused()
    assert "expected NAME=VALUE" in wrong[0]
    assert any(
        "no launch script" in line for line in projector("performance", "--config", MIXTRAL, "--args", "1").refused()
    )


def test_trainers_of_something_else_are_named(tmp_path: Path) -> None:
    file = tmp_path / "bert.sh"
    file.write_text("torchrun --nproc_per_node 8 pretrain_bert.py --num-layers 24\n")
    done = projector("performance", "--config", str(file), "--gpu-arch", "h100")
    assert done.code == 2
    assert "BERT" in done.err


# A Primus experiment on the command line, as its quick start has it: one file and nothing else.


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
