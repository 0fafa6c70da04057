"""Command lines of trainers that are not read, named whatever else stands on them; scripts named from another folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from projector.errors import InputError, Unsupported
from projector.intake import detect
from projector.intake.loaded import Loaded

_SIZES = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --micro-batch-size 1 --bf16"
_OTHERS = {
    "swift sft --model a/b --max_length 2048": "ms-swift",
    f"megatron rlhf --tuner_type lora --tensor_model_parallel_size 2 {_SIZES}": "ms-swift",
    "llamafactory-cli export configs/merge.yaml": "LLaMA-Factory",
    "axolotl preprocess run.yml": "Axolotl",
    "litgpt finetune_lora meta-llama/Llama-2-7b-hf --data JSON": "lengths that nothing states",
    "nemo llm pretrain --factory llama3_8b trainer.num_nodes=2": "programs",
    f"python train.py --rollout-batch-size 32 {_SIZES}": "slime",
    f"ray start --head\nray job submit --address=a -- python3 train.py --colocate --rollout-batch-size 8 {_SIZES}": "slime",
    "ray job submit -- python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo": "verl",
    "torchrun --nproc_per_node 8 -m verl.trainer.sft model.partial_pretrain=x": "verl",
}


def _load(folder: Path, command: str) -> object:
    path = folder / "run.sh"
    path.write_text(f"#!/bin/bash\n{command}\n")
    return detect.load(path, model="llama3.1_8b", gpus_given=True)


@pytest.mark.parametrize("command", _OTHERS)
def test_another_trainer_is_named_even_where_a_model_is_given(tmp_path: Path, command: str) -> None:
    with pytest.raises(Unsupported, match=_OTHERS[command]):
        _load(tmp_path, command)


def test_a_trainer_without_any_argument_of_megatron_is_no_case_for_a_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of Megatron-LM's arguments"):
        _load(tmp_path, "srun python train.py --config configs/7B_sft.py")


def test_a_script_finds_what_lies_beside_it_wherever_it_is_named_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "scripts"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "size.sh").write_text(f'ARGS="{_SIZES} --global-batch-size 16"\n')
    (folder / "run.sh").write_text(
        'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\nsource "$HERE/models/size.sh"\n'
        "torchrun --nproc_per_node 8 pretrain_gpt.py $ARGS\n"
    )
    monkeypatch.chdir(tmp_path)
    loaded = detect.load("scripts/run.sh")
    assert (loaded.gpus, loaded.model.num_layers) == (8, 8)


@pytest.mark.parametrize(
    "lines",
    [
        "--seq-length 1024 \\\n--micro-batch-size 1\n--tensor-model-parallel-size 8 \\\n--bf16",
        "--seq-length 1024 --micro-batch-size 1 \\\n  # --bf16 \\\n  --tensor-model-parallel-size=8",
    ],
)
def test_arguments_that_bash_would_lose_are_no_silent_default(tmp_path: Path, lines: str) -> None:
    with pytest.raises(InputError, match=r"--tensor-model-parallel-size(=8)? as a command.*end of the line before"):
        _load(tmp_path, f"torchrun --nproc_per_node 8 pretrain_gpt.py {lines}")


def test_an_argument_alone_before_any_launch_is_bashs_affair(tmp_path: Path) -> None:
    sizes = f"{_SIZES} --global-batch-size 16"
    loaded = _load(tmp_path, f"--verbose\ntorchrun --nproc_per_node 8 pretrain_gpt.py {sizes}\necho --done")
    assert isinstance(loaded, Loaded)
    assert loaded.recipe is not None
    assert loaded.recipe.global_batch_size == 16
