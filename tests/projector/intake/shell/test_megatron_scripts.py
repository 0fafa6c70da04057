"""Launch scripts of Megatron-LM itself: GPUs, layout and model that their text says, read by hand, or the true refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from projector.errors import InputError, Unsupported
from projector.intake import detect

#: gpus, tp, pp, vpp, micro-batch, global batch, sequence, layers, hidden size, recompute, sharding.
READ = {
    "t5/train_t5_220m_distributed.sh": (8, 1, 1, 1, 64, 512, 128, 12, 768, "none", "no_shard"),
    "gpt3/train_gpt3_175b_distributed.sh": (8, 8, 16, 1, 1, 1536, 2048, 96, 12288, "none", "no_shard"),
    "llama/train_llama3_8b_h100_fp8.sh": (8, 1, 1, 1, 1, 128, 8192, 32, 4096, "none", "optim"),
    "megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh": (8, 1, 1, 1, 1, 128, 8192, 32, 4096, "none", "optim_grads_params"),
    "mixtral/train_mixtral_8x7b_distributed.sh": (8, 1, 4, 1, 1, 256, 4096, 32, 4096, "none", "optim"),
    "gptoss/02_train.sh": (8, 1, 8, 1, 1, 128, 8192, 12, 512, "selective", "optim"),
    "academic_paper_scripts/sc21/run_figure_11.sh": (8, 8, 1, 1, 1, 8, 2048, 3, 20480, "full", "no_shard"),
    "academic_paper_scripts/sc21/run_figure_12.sh": (96, 8, 12, 4, 1, 12, 2048, 96, 12288, "full", "no_shard"),
    "academic_paper_scripts/sc21/run_figure_13.sh": (64, 32, 2, 1, 1, 32, 2048, 32, 20480, "full", "no_shard"),
    "academic_paper_scripts/sc21/run_figure_14.sh": (64, 1, 2, 1, 1, 32, 2048, 32, 3840, "full", "no_shard"),
    "academic_paper_scripts/sc21/run_figure_15.sh": (64, 2, 1, 1, 1, 32, 2048, 32, 3840, "full", "no_shard"),
    "academic_paper_scripts/sc21/run_figure_16.sh": (64, 8, 8, 1, 1, 128, 2048, 32, 15360, "full", "no_shard"),
    "academic_paper_scripts/sc21/run_figure_17.sh": (128, 8, 16, 1, 1, 1, 2048, 80, 12288, "full", "no_shard"),
    "academic_paper_scripts/sc21/run_figure_18.sh": (96, 8, 12, 4, 1, 12, 2048, 96, 12288, "full", "no_shard"),
    "academic_paper_scripts/sc21/run_table_1.sh": (32, 1, 1, 1, 16, 512, 2048, 24, 2304, "full", "no_shard"),
}  # fmt: skip
#: What each refusal must name.
REFUSED = {
    "academic_paper_scripts/sc21/CONFIG.sh": "starts no program",
    "academic_paper_scripts/sc21/SBATCH.sh": "MEGATRON_PARAMS",
    "academic_paper_scripts/sc21/SRUN.sh": "MEGATRON_PARAMS",
    "mamba/run_text_gen_server_8b.sh": "run_hybrid_text_generation_server.py, no trainer that is read",
    "mamba/run_text_gen_server_8b_gpt3.sh": "run_text_generation_server.py, no trainer that is read",
    "megatron_fsdp/sbatch_checkpoint_convert.sh": "checkpoint_inspector.py, no trainer that is read",
    "megatron_fsdp/sbatch_mfsdp_deepseek_v3.sh": "--env SLURM_NNODES",
}
OTHER = {
    "bert/train_bert_340m_distributed.sh": "BERT",
    "mamba/train.sh": "Mamba",
}


@pytest.fixture
def scripts(shared: Path) -> Path:
    folder = shared / "inputs" / "megatron-lm" / "examples"
    if not folder.is_dir():
        pytest.skip("Megatron-LM's launch scripts (../shared/inputs) are not on this machine")
    return folder


def test_every_script_is_read_or_refused_here(scripts: Path) -> None:
    there = {str(file.relative_to(scripts)) for file in scripts.rglob("*.sh")}
    assert there == {*READ, *REFUSED, *OTHER}


@pytest.mark.parametrize("name", READ)
def test_what_the_text_says(scripts: Path, name: str) -> None:
    loaded = detect.load(scripts / name)
    recipe, model = loaded.recipe, loaded.model
    assert recipe is not None
    found = (loaded.gpus, recipe.tp, recipe.pp, recipe.vpp, recipe.micro_batch_size, recipe.global_batch_size)
    found += (recipe.seq_length, model.num_layers, model.hidden_size)
    assert (*found, recipe.recompute_granularity, recipe.data_parallel_sharding) == READ[name]


@pytest.mark.parametrize("name", REFUSED)
def test_refused_for_what_is_missing(scripts: Path, name: str) -> None:
    with pytest.raises(InputError, match=REFUSED[name]):
        detect.load(scripts / name)


@pytest.mark.parametrize("name", OTHER)
def test_other_trainings_are_named(scripts: Path, name: str) -> None:
    with pytest.raises(Unsupported, match=OTHER[name]):
        detect.load(scripts / name)


def test_the_environment_completes_a_batch_job(scripts: Path) -> None:
    file = scripts / "megatron_fsdp" / "sbatch_mfsdp_deepseek_v3.sh"
    loaded = detect.load(file, env={"SLURM_NNODES": "32", "SLURM_NTASKS_PER_NODE": "8", "EP": "16"})
    recipe = loaded.recipe
    assert recipe is not None
    assert (loaded.gpus, recipe.ep, recipe.micro_batch_size, recipe.global_batch_size) == (256, 16, 4, 2048)
    assert recipe.recompute_modules == ("mlp", "moe", "mla_up_proj", "layernorm")
    assert (loaded.model.vocab_size, recipe.make_vocab_size_divisible_by) == (128815, 3232)


def test_a_size_is_chosen_in_the_text(scripts: Path, tmp_path: Path) -> None:
    folder = scripts / "academic_paper_scripts" / "sc21"
    for file in folder.glob("*.sh"):
        (tmp_path / file.name).write_text(file.read_text().replace("MODEL_SIZE=1.7B", "MODEL_SIZE=530B"))
    loaded = detect.load(tmp_path / "run_table_1.sh")
    recipe = loaded.recipe
    assert recipe is not None
    assert (loaded.gpus, recipe.tp, recipe.pp, recipe.vpp, recipe.global_batch_size) == (2520, 8, 35, 3, 2520)
    assert (loaded.model.num_layers, loaded.model.hidden_size) == (105, 20480)
