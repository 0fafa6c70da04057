"""torchtitan's job files as users bring them: today's sections, those of 2024, and what does not fit."""

import json
from pathlib import Path

import pytest
from asked import put, refusal
from tabled import sample, tabled

from projector.errors import Unsupported
from projector.intake import detect
from projector.intake.dialect import dialect
from projector.intake.loaded import Loaded
from projector.intake.settings import Settings
from projector.workload.validate import problems

NOW = sample("torchtitan_now.toml")
OLD = sample("torchtitan_old.toml")


def load(folder: Path, text: str, name: str = "job.toml", **given) -> Loaded:
    return detect.load(put(folder / name, text), **given)


@pytest.mark.parametrize("name", ["job.toml", "job.txt", "job"])
def test_todays_sections(tmp_path, name):
    loaded = load(tmp_path, NOW, name)
    recipe = loaded.workload().recipe
    assert (loaded.framework, loaded.model.name, loaded.gpus) == ("torchtitan", "llama3.1_70b", 256)
    assert (recipe.tp, recipe.pp, recipe.micro_batch_size, recipe.global_batch_size) == (8, 1, 4, 4 * 32)
    assert (recipe.precision, recipe.fp8_recipe, recipe.torch_compile) == ("fp8", "rowwise", True)
    assert (recipe.data_parallel_sharding, recipe.data_parallel_shard_size) == ("optim_grads_params", 16)
    assert recipe.recompute_granularity == "full"
    assert "gpus=256 (the product of the degrees)" in loaded.assumed
    assert problems(loaded.workload()) == ()


def test_sections_of_2024(tmp_path):
    loaded = load(tmp_path, OLD)
    recipe = loaded.workload(512).recipe
    assert (loaded.model.name, loaded.gpus, recipe.tp, recipe.pp) == ("llama3.1_405b", None, 8, 4)
    assert recipe.micro_batch_size == 8 // 4  # as many micro-batches as stages
    assert recipe.global_batch_size == 8 * 512 // 32
    assert (recipe.precision, recipe.torch_compile, recipe.tp_comm_overlap) == ("fp8", True, True)
    assert recipe.recompute_modules == ("op_sac",)


def test_yaml_and_json_say_the_same(tmp_path):
    import tomllib

    first = load(tmp_path, NOW)
    for name in ("job.yaml", "job.json"):
        assert load(tmp_path, json.dumps(tomllib.loads(NOW)), name) == first


def test_parameters_in_bf16(tmp_path):
    recipe = load(tmp_path, NOW.replace("steps =", 'dtype = "bfloat16"\nsteps =')).workload().recipe
    assert recipe.main_params_dtype == "bf16"
    assert load(tmp_path, NOW).workload().recipe.main_params_dtype != "bf16"


@pytest.mark.parametrize(("ep", "stated", "etp"), [(1, "", 8), (1, "1", 8), (8, "", 1), (8, "1", 1), (8, "8", 8)])
def test_experts_without_a_group_of_their_own_are_cut_as_the_rest(tmp_path, ep, stated, etp):
    text = NOW.replace("llama3", "llama4").replace("70B", "17bx16e").replace("shard_degree = 16", "shard_degree = 8")
    degrees = f"expert_parallel_degree = {ep}\n" + (f"expert_tensor_parallel_degree = {stated}\n" if stated else "")
    recipe = load(tmp_path, text.replace("[activation", f"{degrees}[activation")).workload().recipe
    assert (recipe.tp, recipe.ep, recipe.etp) == (8, ep, etp)
    assert load(tmp_path, NOW).workload().recipe.etp == 1  # a dense model has none


def test_only_the_loss_is_compiled(tmp_path):
    assert load(tmp_path, NOW.replace('["model", "loss"]', '["loss"]')).workload().recipe.torch_compile is False


def test_replicas_of_what_is_left_need_the_number_of_gpus(tmp_path):
    text = NOW.replace("shard_degree = 16", "shard_degree = -1")
    refusal(load, tmp_path, text, match="--gpus")
    recipe = load(tmp_path, text, gpus=128, gpus_given=True).workload(128).recipe
    assert recipe.data_parallel_shard_size == 8
    refusal(load, tmp_path, NOW, gpus=64, gpus_given=True, match="product")


@pytest.mark.parametrize(("old", "new", "named"), tabled("readers", "what_does_not_fit_is_named"))
def test_what_does_not_fit_is_named(tmp_path, old, new, named):
    assert old in NOW
    refusal(load, tmp_path, NOW.replace(old, new), match=named)


def test_a_family_alone_is_no_size(tmp_path):
    text = NOW.replace('"llama3"', '"deepseek_v3"').replace('"70B"', '"debugmodel"')
    refusal(load, tmp_path, text, match="flavor")
    assert load(tmp_path, text, model="deepseek_v3").model.name == "deepseek_v3"


def test_what_nothing_lowers(tmp_path):
    refusal(load, tmp_path, NOW.replace('"llama3"', '"flux"'), match="flux", kind=Unsupported)
    cut = OLD.replace("[activation", 'pipeline_parallel_split_points = ["layers.30"]\n[activation', 1)
    refusal(load, tmp_path, cut, match="cut by hand", kind=Unsupported)


def test_other_toml(tmp_path):
    refusal(load, tmp_path, '[project]\nname = "x"\n', "pyproject.toml", match="torchtitan job")


def test_todays_name_counts():
    both = {"training.batch_size": 1, "training.local_batch_size": 2, "training.steps": 3}
    assert Settings(dialect("torchtitan"), both, "f").stated == {"training.local_batch_size": 2, "training.steps": 3}


@pytest.mark.parametrize(("length", "samples", "pieces"), [(2048, 8, 1), (8192, 2, 4), (512, 1, 1)])
def test_sizes_in_tokens_are_those_in_samples(tmp_path, length, samples, pieces):
    head = '[model]\nname = "llama3"\nflavor = "8B"\n'
    pp = f"pipeline_parallel_degree = {2 if pieces > 1 else 1}\n"
    ours = (
        f"{head}[training]\nseq_len = {length}\nlocal_batch_size = {samples * pieces}\nglobal_batch_size = 64\n"
        f"[parallelism]\n{pp}pipeline_parallel_microbatches = {pieces}\n"
    )
    theirs = (
        f"{head}[training]\nmax_context_length = {length}\nnum_tokens_per_microbatch_per_dp_rank = {length * samples}\n"
        f"num_tokens_per_train_step = {64 * length}\n[parallelism]\n{pp}num_pp_microbatches = {pieces}\n"
    )
    loaded = [detect.load(put(tmp_path / "job.toml", text), gpus=8) for text in (ours, theirs)]
    assert loaded[0].recipe == loaded[1].recipe
    (tmp_path / "job.toml").write_text(
        theirs.replace(f"dp_rank = {length * samples}", f"dp_rank = {length * samples + 1}")
    )
    refusal(detect.load, tmp_path / "job.toml", gpus=8, match="a multiple of training")
