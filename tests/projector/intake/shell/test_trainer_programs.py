"""Programs on Hugging Face's Trainer: the same arguments as a command line and as a file are the same workload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projector.errors import InputError
from projector.intake import detect

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
    file = tmp_path / "arguments.json"
    file.write_text(json.dumps(stated))
    words = [f"--{key} {value}" if value is not True else f"--{key}" for key, value in stated.items()]
    script = tmp_path / "train.sh"
    script.write_text(f"torchrun --nproc_per_node 4 finetune.py {' '.join(words)}\n")
    a, b = detect.load(file), detect.load(script)
    assert b.gpus == 4
    assert a.recipe is not None
    assert (a.model, a.recipe, a.framework, a.samples_per_rank) == (b.model, b.recipe, b.framework, b.samples_per_rank)
    assert a.unmodelled == b.unmodelled
    assert a.recipe.seq_length == 1024
    assert a.recipe.global_batch_size == 2 * int(str(changes.get("gradient_accumulation_steps", 1)))


def test_accelerate_hands_on_its_type_and_deepspeeds_file(tmp_path: Path) -> None:
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    line = (
        "accelerate launch --mixed_precision bf16 --num_processes 4 --use_deepspeed --deepspeed_config_file zero.json"
    )
    words = " ".join(f"--{key} {value}" for key, value in {**_BASE, "max_seq_length": 512}.items())
    (tmp_path / "train.sh").write_text(f"{line} finetune.py {words}\n")
    found = detect.load(tmp_path / "train.sh")
    assert found.recipe is not None
    assert (found.gpus, found.framework, found.recipe.precision) == (4, "deepspeed", "bf16")
    assert found.recipe.data_parallel_sharding == "optim_grads_params"


def test_a_length_that_nothing_states_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(_BASE))
    with pytest.raises(InputError, match="max_seq_length"):
        detect.load(tmp_path / "a.json")
