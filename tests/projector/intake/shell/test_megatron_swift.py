"""``megatron sft`` and ``megatron pt`` of ms-swift."""

from pathlib import Path

import pytest
from asked import put, refusal

from projector.errors import InputError, Unsupported
from projector.intake import detect
from projector.intake.loaded import Loaded
from projector.workload import zoo

_WORDS = "--model Qwen/Qwen3-30B-A3B-Instruct-2507 --packing true --max_length 8192 --dataset x y --finetune true"


def _load(folder: Path, words: str, before: str = "NPROC_PER_NODE=8 NNODES=2", **options: bool) -> Loaded:
    file = put(folder / "run.sh", f"#!/bin/bash\n{before} \\\nmegatron sft \\\n  {words}\n")
    return detect.load(file, **options)


def test_values_stand_behind_every_option_and_what_is_left_out_is_ms_swifts(tmp_path: Path) -> None:
    loaded = _load(
        tmp_path, f"{_WORDS} --tensor_model_parallel_size 2 --sequence_parallel false --expert_model_parallel_size 8"
    )
    work = loaded.workload()
    recipe = work.recipe
    assert (work.model.num_layers, work.model.mtp_num_layers, work.gpus) == (48, 0, 16)
    assert (recipe.tp, recipe.ep, recipe.etp, recipe.sequence_parallel, recipe.seq_length) == (2, 8, 1, False, 8192)
    assert (recipe.micro_batch_size, recipe.global_batch_size, recipe.recompute_granularity) == (1, 16, "selective")
    assert (recipe.data_parallel_sharding, recipe.overlap_grad_reduce, recipe.precision) == ("optim", False, "bf16")
    other = _load(
        tmp_path,
        f"{_WORDS} --tensor_model_parallel_size 2 --sequence_parallel true --recompute_granularity none --tuner_type lora "
        "--lora_rank 16 --target_modules linear_qkv linear_proj --fp8_format hybrid --fp8_recipe blockwise",
    ).workload()
    assert other.recipe.sequence_parallel
    assert (other.recipe.recompute_granularity, other.recipe.precision) == ("none", "fp8")
    assert (other.recipe.lora.dim, set(other.recipe.lora.targets)) == (16, {"linear_qkv", "linear_proj"})


def test_a_file_as_the_first_word_says_what_the_command_line_does_not(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "ENV:\n  NPROC_PER_NODE: 8\n  NNODES: 4\nmodel: Qwen/Qwen3-8B\npacking: true\nmax_length: 4096\ndataset: [x, y]\n"
        "tensor_model_parallel_size: 4\nsequence_parallel: true\nglobal_batch_size: 64\nfp8_format: null\n"
        "tuner_type: lora\ntarget_modules: [linear_qkv, linear_fc1]\n"
    )
    loaded = _load(tmp_path, "run.yaml --global_batch_size 128 --micro_batch_size 2", "NNODES=2")
    recipe = loaded.workload().recipe
    assert (loaded.model.name, loaded.gpus) == ("qwen3_8b", 8 * 2)
    assert (recipe.tp, recipe.sequence_parallel, recipe.seq_length, recipe.precision) == (4, True, 4096, "bf16")
    assert (recipe.micro_batch_size, recipe.global_batch_size) == (2, 128)
    assert set(recipe.lora.targets) == {"linear_qkv", "linear_fc1"}
    refusal(_load, tmp_path, "absent.yaml", match=r"absent\.yaml.*beside the script")
    (tmp_path / "list.yaml").write_text("- 1\n")
    refusal(_load, tmp_path, "list.yaml", match="a mapping")


def test_processes_are_those_of_its_environment(tmp_path: Path) -> None:
    assert _load(tmp_path, _WORDS, "NPROC_PER_NODE=4").gpus == 4
    assert _load(tmp_path, _WORDS, "CUDA_VISIBLE_DEVICES=0").gpus == 1
    assert _load(tmp_path, _WORDS, "NNODES=2", gpus_given=True).gpus is None
    refusal(_load, tmp_path, _WORDS, "NNODES=2", match="--env NPROC_PER_NODE")


@pytest.mark.parametrize("name", ["Qwen/Qwen3-VL-8B-Instruct", "ZhipuAI/GLM-4.6V", "01-ai/Yi-9B-Coder", "$M"])
def test_a_model_that_only_begins_like_one_of_the_zoo_is_asked_for(tmp_path: Path, name: str) -> None:
    refusal(_load, tmp_path, _WORDS.replace("Qwen/Qwen3-30B-A3B-Instruct-2507", name), match="--model NAME")
    (tmp_path / "run.sh").write_text(
        f"NPROC_PER_NODE=8 megatron pt {_WORDS.replace('Qwen/Qwen3-30B-A3B-Instruct-2507', name)}\n"
    )
    assert detect.load(tmp_path / "run.sh", model="qwen3_8b").model == zoo.load("qwen3_8b")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (f"{_WORDS} --rlhf_type dpo", "preference"),
        (f"{_WORDS} --task_type seq_cls", "causal"),
        (f"{_WORDS} --tuner_type lora_llm --freeze_vit false", "vision"),
        (f"{_WORDS} --freeze_parameters_ratio 0.5", "frozen"),
    ],
)
def test_other_trainings_are_refused(tmp_path: Path, words: str, why: str) -> None:
    refusal(_load, tmp_path, words, match=why, kind=Unsupported)


def test_what_only_the_run_knows_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tensor_model_parallel_size.*--env TP"):
        _load(tmp_path, f"{_WORDS} --tensor_model_parallel_size $TP")
    refusal(_load, tmp_path, _WORDS.replace("--max_length 8192", ""), match="max_length")
