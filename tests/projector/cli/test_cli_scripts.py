"""Launch scripts on the command line: what starts them, what they assume, how they are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_command import MIXTRAL, projector

from projector.cli import run

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
