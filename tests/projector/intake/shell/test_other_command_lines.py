"""Command lines of trainers that are not read, named whatever else stands on them; scripts named from another folder."""

import json
from pathlib import Path

import pytest
from asked import put, refusal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tabled import tabled

from projector.errors import InputError, Unsupported
from projector.intake import detect
from projector.intake.loaded import Loaded

_SIZES = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --micro-batch-size 1 --bf16"
_OTHERS = {
    "swift export --model a/b --quant_bits 4": "ms-swift",
    f"megatron rlhf --tuner_type lora --tensor_model_parallel_size 2 {_SIZES}": "ms-swift",
    "llamafactory-cli export configs/merge.yaml": "LLaMA-Factory",
    "axolotl preprocess run.yml": "Axolotl",
    "litgpt finetune_adapter meta-llama/Llama-2-7b-hf --data JSON": "adapters of another kind",
    f"python train.py --rollout-batch-size 32 {_SIZES}": "slime",
    f"ray start --head\nray job submit --address=a -- python3 train.py --colocate --rollout-batch-size 8 {_SIZES}": "slime",
    "torchrun scripts/training/run_recipe.py --recipe llama32_1b train.global_batch_size=64": "Megatron-Bridge.*"
    "--global-batch-size 64",
    "colossalai run --nproc_per_node 8 train.py --plugin zero2 --batch_size 16": "ColossalAI.*micro-batch-size …",
    "ray job submit -- python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo": "verl",
    "torchrun --nproc_per_node 8 -m verl.trainer.sft model.partial_pretrain=x": "verl's fine-tuning.*as flags",
    "torchrun --nproc_per_node 8 -m verl.trainer.fsdp_sft_trainer model.lora_rank=8": "verl's fine-tuning",
}


def _load(folder: Path, command: str) -> object:
    path = put(folder / "run.sh", f"#!/bin/bash\n{command}\n")
    return detect.load(path, model="llama3.1_8b", gpus_given=True)


@pytest.mark.parametrize("command", _OTHERS)
def test_another_trainer_is_named_even_where_a_model_is_given(tmp_path: Path, command: str) -> None:
    refusal(_load, tmp_path, command, match=_OTHERS[command], kind=Unsupported)


@pytest.mark.parametrize(
    "words",
    ["--micro_batch_size 2 --bf16", "--deepspeed_config ds.json --batch_size 4", "--load x --fp16 --seq-length 4096"],
)
def test_a_program_with_a_few_of_its_words_is_none_of_megatrons(tmp_path: Path, words: str) -> None:
    refusal(_load, tmp_path, f"torchrun --nproc_per_node 8 train.py {words}", match="none of Megatron-LM's arguments")


def test_what_cannot_be_a_batch_in_samples_is_suggested_by_nobody(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--seq-length 32768.*--global-batch-size …"):
        _load(tmp_path, "torchrun OLMo2-7B-sft.py train x --seq_len 32768 --global_batch_size=1048576 --bf16")


def test_a_script_finds_what_lies_beside_it_wherever_it_is_named_from(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "scripts"
    put(folder / "models" / "size.sh", f'ARGS="{_SIZES} --global-batch-size 16"\n')
    (folder / "run.sh").write_text(
        'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\nsource "$HERE/models/size.sh"\n'
        "torchrun --nproc_per_node 8 pretrain_gpt.py $ARGS\n"
    )
    monkeypatch.chdir(tmp_path)
    loaded = detect.load("scripts/run.sh")
    assert (loaded.gpus, loaded.model.num_layers) == (8, 8)


@pytest.mark.parametrize("lines", tabled("readers", "arguments_that_bash_would_lose_are_no_silent_default"))
def test_arguments_that_bash_would_lose_are_no_silent_default(tmp_path: Path, lines: str) -> None:
    with pytest.raises(InputError, match=r"--tensor-model-parallel-size(=8)? as a command.*end of the line before"):
        _load(tmp_path, f"torchrun --nproc_per_node 8 pretrain_gpt.py {lines}")


def test_an_argument_alone_before_any_launch_is_bashs_affair(tmp_path: Path) -> None:
    sizes = f"{_SIZES} --global-batch-size 16"
    loaded = _load(tmp_path, f"--verbose\ntorchrun --nproc_per_node 8 pretrain_gpt.py {sizes}\necho --done")
    assert isinstance(loaded, Loaded)
    assert loaded.recipe.global_batch_size == 16


# Programs on Hugging Face's Trainer: the same arguments as a command line and as a file are the same workload.


_BASE: dict[str, object] = {"model_name_or_path": "huggyllama/llama-7b", "per_device_train_batch_size": 2}
_VALUES = {
    "gradient_accumulation_steps": st.integers(1, 8),
    "bf16": st.just(True),
    "gradient_checkpointing": st.booleans(),
    "attn_implementation": st.sampled_from(["flash_attention_2", "eager", "sdpa"]),
    "use_lora": st.just(True),
    "lora_r": st.integers(4, 64),
    "optim": st.sampled_from(["adamw_torch", "adafactor"]),
    "learning_rate": st.just(2e-5),
}
_LENGTHS = st.sampled_from(["max_seq_length", "model_max_length", "block_size", "max_length"])


@given(st.fixed_dictionaries({}, optional=_VALUES), _LENGTHS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_a_command_line_says_what_a_file_says(tmp_path: Path, changes: dict[str, object], length: str) -> None:
    stated = {**_BASE, length: 1024, **changes}
    file = put(tmp_path / "arguments.json", json.dumps(stated))
    words = [f"--{key} {value}" if value is not True else f"--{key}" for key, value in stated.items()]
    script = put(tmp_path / "train.sh", f"torchrun --nproc_per_node 4 finetune.py {' '.join(words)}\n")
    a, b = detect.load(file), detect.load(script)
    assert b.gpus == 4
    assert (a.model, a.recipe, a.framework, a.samples_per_rank) == (b.model, b.recipe, b.framework, b.samples_per_rank)
    assert a.unmodelled == b.unmodelled
    assert a.recipe.seq_length == 1024
    assert a.recipe.global_batch_size == 2 * int(str(changes.get("gradient_accumulation_steps", 1)))


def test_a_length_that_nothing_states_is_asked_for(tmp_path: Path) -> None:
    refusal(detect.load, put(tmp_path / "a.json", json.dumps(_BASE)), match="max_seq_length")
