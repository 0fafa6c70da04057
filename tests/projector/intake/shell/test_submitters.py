"""A program that submits the command behind its ``--``: the command is what trains."""

from pathlib import Path

import pytest
from asked import put, refusal

from projector.errors import InputError, Unsupported
from projector.intake.detect import load

_TRAINER = (
    "pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 1 "
    "--global-batch-size 64 --max-position-embeddings 2048 --vocab-size 32000 --tokenizer-type NullTokenizer --bf16"
)
_DIRECT = f"torchrun --nnodes 2 --nproc_per_node 8 {_TRAINER}"


def script(tmp_path: Path, line: str) -> Path:
    return put(tmp_path / "run.sh", f"#!/bin/bash\n{line}\n")


@pytest.mark.parametrize(
    "before",
    [
        "python submit.py --gpus 8 --",
        "uv run python submit.py --priority high --preempt --",
        r"python submit.py --gpus 8 -- source setup.sh \&\&",
    ],
)
def test_what_stands_behind_the_dashes_is_what_trains(tmp_path: Path, before: str) -> None:
    assert load(script(tmp_path, f"{before} {_DIRECT}")) == load(script(tmp_path, _DIRECT))


def test_a_shell_under_a_launcher_runs_what_the_script_wrote(tmp_path: Path) -> None:
    lines = (
        f"echo 'nice python {_TRAINER}' > inner.sh\ntorchrun --nproc_per_node 8 --nnodes 2 --no-python bash inner.sh"
    )
    assert load(script(tmp_path, lines)).gpus == 16


def test_nodes_of_the_submitter_that_the_launcher_does_not_state_are_not_one(tmp_path: Path) -> None:
    inner = f"torchrun --nproc_per_node 8 {_TRAINER}"
    assert load(script(tmp_path, f"python submit.py --num_nodes 2 -- {_DIRECT}")).gpus == 16
    refusal(load, script(tmp_path, f"python submit.py --num_nodes 4 -- {inner}"), match="--gpus N")
    assert load(script(tmp_path, f"python submit.py --num_nodes 1 -- {inner}")).gpus == 8
    assert load(script(tmp_path, f"python submit.py --num_nodes 4 --gpus 8 -- {inner}")).gpus == 32


def test_the_task_is_that_of_the_program_behind(tmp_path: Path) -> None:
    words = "--model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 --max_seq_length 2048"
    with pytest.raises(Unsupported, match="preference"):
        load(script(tmp_path, f"python submit.py -- accelerate launch --num_processes 8 open_instruct/dpo.py {words}"))
    with pytest.raises(Unsupported, match="reinforcement"):
        load(script(tmp_path, rf"python submit.py -- source ray.sh \&\& python open_instruct/grpo_fast.py {words}"))


def test_words_of_a_trainer_behind_dashes_are_no_command(tmp_path: Path) -> None:
    assert load(script(tmp_path, f"{_DIRECT} -- extra")) == load(script(tmp_path, _DIRECT))


def test_a_program_that_only_a_run_knows_is_shown_as_the_script_writes_it(tmp_path: Path) -> None:
    error = refusal(load, script(tmp_path, 'python "$(locate_program)" --flag 1'))
    assert "locate_program" in str(error)
    assert not any("\ue000" <= letter <= "\uf8ff" for letter in str(error))


def test_words_of_another_trainer_that_only_a_run_knows_are_no_traceback(tmp_path: Path) -> None:
    line = "swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B --max_length $(length_of data) --output_dir $UNSET"
    with pytest.raises((InputError, Unsupported), match="ms-swift"):
        load(script(tmp_path, line))
