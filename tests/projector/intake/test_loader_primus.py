"""Primus experiments: variables, presets, their order, and every mistake at once."""

import re
from pathlib import Path

import pytest
from asked import put, refusal

from projector.errors import Problem, Unsupported
from projector.intake import primus
from projector.intake.yaml_files import substitute
from projector.workload import zoo
from projector.workload.layout import chunks, virtual_stages
from projector.workload.parameters import count
from projector.workload.validate import problems

DATA = Path(__file__).parent / "data"
DEEPSEEK, LLAMA = DATA / "primus_deepseek_v3.yaml", DATA / "primus_llama.yaml"


def test_experiment_without_primus():
    loaded = primus.load(DEEPSEEK, env={}, gpus=256)
    recipe = loaded.recipe
    assert loaded.framework == "primus"
    assert (loaded.model.family, loaded.model.mtp_num_layers, loaded.model.num_layers) == ("deepseek_v3", 0, 61)
    assert (recipe.tp, recipe.pp, recipe.ep, recipe.seq_length) == (1, 16, 8, 4096)
    assert virtual_stages(recipe) == 2
    assert len(chunks(loaded.model, recipe)) == 32
    assert (recipe.moe_token_dispatcher_type, recipe.moe_flex_dispatcher_backend) == ("flex", "deepep")
    assert (recipe.moe_grouped_gemm, recipe.sync_free_stage) == ("legacy", 1)
    assert (recipe.main_grads_dtype, recipe.exp_avg_dtype, recipe.main_params_dtype) == ("bf16", "bf16", "fp32")
    assert recipe.recompute_layer_ids == (0, 3, 4)
    assert recipe.cross_entropy_fusion == "te"
    assert recipe.pipeline_schedule is None
    assert recipe.data_parallel_sharding == "optim"
    assert loaded.assumed
    assert "stderr_sink_level" in loaded.ignored
    assert problems(loaded.workload()) == ()


@pytest.mark.parametrize("framework", ["torchrec_dlrm", "torchrec", "dlrm_v4", "dlrm"])
def test_what_is_no_language_model_says_what_it_trains(tmp_path, framework):
    """Primus' projection takes these names for its ranker."""
    (tmp_path / "exp.yaml").write_text(f"modules: {{pre_trainer: {{framework: {framework}, model: dlrm_v4.yaml}}}}")
    with pytest.raises(Unsupported, match=r"not a language model.*recommendation model, whose step is look-ups"):
        primus.load(tmp_path / "exp.yaml", env={})


def test_layout_that_places_no_mtp_layer_builds_none(tmp_path):
    """As the published DeepSeek-V3 experiments do: the preset has one MTP layer, the layout none."""
    file = tmp_path / "exp.yaml"
    layout = "Et*1|t*1|" + "t*2|" * 29 + "t*1,L"
    text = re.sub(r"\n +mtp_num_layers: 0", "", DEEPSEEK.read_text()).replace("Et|(tt|)*29t|tL", layout)
    loaded = primus.load(put(file, text), env={}, gpus=256)
    assert loaded.model.mtp_num_layers == 0
    assert any("mtp_num_layers" in text for text in loaded.assumed)
    assert loaded.recipe is not None
    assert [len(chunk.layers) for chunk in chunks(loaded.model, loaded.recipe)] == [1, 1, *[2] * 29, 1]


def test_variables_reach_into_strings():
    env = {"TEST_MODEL": "deepseek_v2", "TEST_PP": "1", "TEST_SEQ": "8192", "NNODES": "4"}
    loaded = primus.load(DEEPSEEK, env=env)
    refusal(chunks, loaded.model, loaded.recipe, match="60 × decoder layers t")
    loaded = primus.load(DEEPSEEK, env=env | {"GPUS_PER_NODE": "8"}, overrides={"pipeline_model_parallel_layout": None})
    assert loaded.gpus == 32
    assert (loaded.recipe.pp, loaded.recipe.seq_length, loaded.model.num_layers) == (1, 8192, 60)


def test_presets_of_a_configs_folder():
    loaded = primus.load(LLAMA, configs=DATA / "primus_configs", env={}, gpus=64)
    recipe = loaded.recipe
    assert recipe is not None
    assert count(loaded.model) == count(zoo.load("llama3.1_8b"))
    assert loaded.model.mla is None
    assert loaded.model.moe is None
    assert (recipe.precision, recipe.fp8_recipe) == ("fp8", "delayed")
    assert recipe.data_parallel_sharding == "optim_grads_params"
    assert (recipe.seq_length, recipe.micro_batch_size, recipe.global_batch_size) == (8192, 2, 128)
    assert loaded.assumed == ("vocab_size=128256 (of llama3.1_8B)",)


def test_module_preset_wins_over_the_model_preset(tmp_path):
    file = put(tmp_path / "exp.yaml", re.sub(r"\n +seq_length: 8192", "", LLAMA.read_text()))
    loaded = primus.load(file, configs=DATA / "primus_configs", env={})
    assert loaded.recipe.seq_length == 4096
    assert loaded.gpus is None


def test_every_mistake_at_once(tmp_path):
    file = tmp_path / "exp.yaml"
    file.write_text(
        "work_group: ${NOT_SET}\nuser_name: x\nmodules:\n  pre_trainer:\n    framework: tensorflow\n"
        "    model: llama9_8B.yaml\n    overrides: [1]\n"
    )
    error = refusal(primus.load, file, env={})
    keys = {problem.key for problem in error.problems}
    assert {
        "work_group", "exp_name", "workspace", "modules.pre_trainer.framework", "modules.pre_trainer.model",
        "modules.pre_trainer.overrides",
    } <= keys  # fmt: skip


@pytest.mark.parametrize("text", ["a: [", "- 1", "", "modules: {}", "modules: {pre_trainer: 3}", "extends: 4"])
def test_broken_files(tmp_path, text):
    refusal(primus.load, put(tmp_path / "exp.yaml", text), env={})


def test_missing_files_and_cycles(tmp_path):
    refusal(primus.load, tmp_path / "no.yaml", env={}, match=r"readable|does not exist")
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: [a.yaml]\n")
    refusal(primus.load, tmp_path / "a.yaml", env={}, match="cycle")
    refusal(primus.load, LLAMA, configs=tmp_path, env={}, match=r"readable|does not exist")


@pytest.mark.parametrize(
    ("text", "value"),
    [("${A}", 1), ("${A:2}", 1), ("${B:2}", 2), ("${B:1.0e-5}", 1e-5), ("${B:true}", True), ("x${A}", "x1"),
     ("${B:null}", None), ("null", None), ("${B:}", ""), ("3.2e12", "3.2e12")],
)  # fmt: skip
def test_substitution(text, value):
    found: list[Problem] = []
    assert substitute({"k": [text]}, {"A": "1"}, "f", "", found) == {"k": [value]}
    assert found == []
