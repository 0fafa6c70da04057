"""What stands in a file decides how it is read, whatever it is called."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import command_line
import pytest
import workloads
from asked import put, refusal, says
from cli_command import DEEPSEEK, MIXTRAL, document, refused
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from projector.benchmark.shrink import shrink_to
from projector.cli import _parser, performance
from projector.cli.parser import parse
from projector.cli.recipe_flags import read_overrides
from projector.intake import detect, other_tools
from tests.projector.intake.primus_tree import checkout, experiment

CASE = "model: llama3.1_8b\nrecipe: {micro_batch_size: 1, global_batch_size: 64, seq_length: 4096}\n"


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.txt", "a", "a.log"])
@pytest.mark.parametrize(("source", "family"), [(MIXTRAL, "mixtral"), (DEEPSEEK, "deepseek_v3")])
def test_the_name_does_not_matter(tmp_path, name, source, family):
    assert detect.load(put(tmp_path / name, Path(source).read_text())).model.family == family


def test_arguments_over_a_known_model(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py "
        "--micro-batch-size 1 --global-batch-size 8 --seq-length 1024 --num-layers 12"
    )
    model = detect.load(script, model="deepseek_v3").model
    assert (model.num_layers, model.hidden_size, model.name) == (12, 7168, "deepseek_v3")


def test_case_keys(tmp_path):
    file = tmp_path / "case.yaml"
    file.write_text(CASE + "nodes: 4\ngpu: b200\nframework: nemo\nframework_date: 2025-06\nnotes: text\n")
    refusal(detect.load(file).workload, match="gpus")
    loaded = detect.load(file)
    assert (loaded.nodes, loaded.gpus, loaded.cluster) == (4, None, "b200")
    assert loaded.workload(32).framework_date == "2025-06"
    assert loaded.assumed == ()
    assert detect.load(put(file, CASE)).assumed == ("framework=megatron-lm",)


@given(st.fixed_dictionaries({}, optional={
    **{name: st.integers(1, 64) for name in ("tp", "micro_batch_size", "seq_len", "gbs", "lora_alpha")},
    "sequence_parallel": st.booleans(), "recompute_granularity": st.sampled_from(["full", "selective", "nonsense"]),
}), st.sampled_from(["{}", "[]", "text"]))  # fmt: skip
def test_an_unread_file_ends_in_the_flags_that_ask_the_same(stated, other):
    text = other_tools.flags({"run": {**stated, "other": other}, "model_name": "meta-llama/Llama-3.1-8B"})
    words = re.sub(r" --[\w-]+ (…|N)(?= |$)", "", text).partition(":")[2].split()
    read = {"tp": "tp", "micro_batch_size": "micro_batch_size", "seq_len": "seq_length", "gbs": "global_batch_size"}
    read |= {name: name for name in ("sequence_parallel", "recompute_granularity")}
    told = read_overrides(parse(_parser(), ["performance", *words]), {}, [])
    meant = {read[name]: value for name, value in stated.items() if name in read and value not in (False, "nonsense")}
    assert {name: value for name, value in told.recipe.items() if value is not None} == meant


# Launch scripts on the command line: what starts them, what they assume, how they are refused.


SCRIPT = """#!/bin/bash
# old: --tensor-model-parallel-size 8
L=${1:?the number of layers}
while [[ $# -gt 1 ]]; do case $2 in --tp) TP=$3; shift 2;; *) exit 1;; esac; done
torchrun --nnodes $NNODES --nproc_per_node 8 pretrain_gpt.py --num-layers $L --hidden-size 4096 --num-attention-heads 32 \\
  --seq-length 4096 --micro-batch-size 1 --tensor-model-parallel-size ${TP:-1} --bf16 --swiglu --use-distributed-optimizer
"""


@pytest.fixture
def script(tmp_path) -> str:
    return str(put(tmp_path / "train.sh", SCRIPT))


def made(*flags: str) -> dict[str, object]:
    found: dict[str, object] = document("performance", "--gpu-arch", "h100", *flags)
    return found


def test_arguments_and_environment_start_a_script(script: str) -> None:
    found = made("--config", script, "--args", "16 --tp 4", "--env", "NNODES=4", "X=a b")
    assumed = str(found["assumed"])
    for text in ("gpus=32 (4 nodes × 8 processes)", "NNODES=4", "train.sh, line 5"):
        assert text in assumed
    workload = json.dumps(found)
    says(workload, '"gpus": 32', '"tp": 4', '"global_batch_size": 8')


def test_a_vocabulary_that_nothing_names_says_what_it_is_worth(script: str) -> None:
    plain = str(made("--config", script, "--args", "16", "--env", "NNODES=1")["assumed"])
    says(plain, "with 32k", "with 256k")
    Path(script).write_text(SCRIPT.replace("--bf16", "--bf16 --tokenizer-type Llama2Tokenizer"))
    named = str(made("--config", script, "--args", "16", "--env", "NNODES=1")["assumed"])
    assert "vocab_size=32000 (Llama2Tokenizer)" in named
    assert "256k" not in named


def test_the_number_of_gpus_may_come_from_the_flag(script: str) -> None:
    found = made("--config", script, "--args", "16", "--gpus", "64")
    says(json.dumps(found), '"gpus": 64', '"global_batch_size": 64')
    assert "gpus=" not in str(found["assumed"])


def test_refusals_name_the_flag(script: str) -> None:
    for config, words, said in (
        (script, (), r"--args|--env 1"),
        (script, ("--args", "16", "--gpu-arch", "h100"), "--env NNODES"),
        (script, ("--env", "NNODES"), "expected NAME=VALUE"),
        (MIXTRAL, ("--args", "1"), "no launch script"),
    ):
        assert re.search(said, "\n".join(refused("performance", "--config", config, *words)))


# A Primus experiment on the command line, as its quick start has it: one file and nothing else.


@pytest.fixture(autouse=True)
def _bare(monkeypatch) -> None:
    for name in ("PRIMUS_GPU_ARCH", "NNODES", "GPUS_PER_NODE", "PRIMUS_PATH", "PRIMUS_ROOT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("flags", "variable", "board", "assumed"),
    tabled("readers", "one_file_says_its_gpu_by_its_folder_where_nothing_else_does"),
)
def test_one_file_says_its_gpu_by_its_folder_where_nothing_else_does(
    tmp_path, monkeypatch, flags: tuple[str, ...],
    variable: str, board: str, assumed: str,
) -> None:  # fmt: skip
    if variable:
        monkeypatch.setenv("PRIMUS_GPU_ARCH", variable)
    file = experiment(checkout(tmp_path), "dense", seq_length=4096)
    text = command_line.told("projector", "performance", "--config", file, *flags)
    says(text, board, "recompute none")
    assert re.findall(r"cluster=\w+ \([^)]*\)", text) == [assumed] * bool(assumed)


def test_what_a_benchmark_shrank_to_stands_beside_the_target(monkeypatch) -> None:
    run = workloads.sharded("mixtral_8x7b", 64, tp=2, pp=4, ep=8, cp=1)
    shrunk = shrink_to(run, 4)
    timed = SimpleNamespace(asked=SimpleNamespace(workload=shrunk.workload, ranks=shrunk.ranks), notes=())
    monkeypatch.setattr("projector.cli.live.measurement", lambda *_: timed)
    words = performance._shrunk_sizes(SimpleNamespace(workload=run, cluster=None), SimpleNamespace())
    assert "pp 1, ep 4, tp 2, cp 1 on 4 of 64 ranks; target: pp 4, ep 8, tp 2, cp 1, dp 8" in words
