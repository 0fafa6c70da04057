"""MaxText's configuration files, and those of trainers that are named and not read."""

from __future__ import annotations

import json

import pytest
import yaml

from projector.errors import InputError, Unsupported
from projector.workload.loaders import detect

FILE = {
    "base_config": "base.yml",
    "model_name": "llama3.1-70b",
    "hardware": "gpu",
    "dcn_data_parallelism": 2,
    "dcn_fsdp_parallelism": 16,
    "ici_fsdp_parallelism": 8,
    "per_device_batch_size": 2,
    "max_target_length": 8192,
    "learning_rate": 0.001,
    "attention": "cudnn_flash_te",
    "remat_policy": "full",
    "dataset_type": "synthetic",
}


def load(folder, content, **given):
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(content))
    return detect.load(file, **given)


def test_axes_make_the_gpus(tmp_path):
    loaded = load(tmp_path, FILE)
    recipe = loaded.workload().recipe
    assert (loaded.framework, loaded.model.name, loaded.gpus) == ("maxtext", "llama3.1_70b", 256)
    assert (recipe.tp, recipe.pp, recipe.micro_batch_size, recipe.global_batch_size) == (1, 1, 2, 512)
    assert (recipe.data_parallel_sharding, recipe.data_parallel_shard_size) == ("optim_grads_params", 128)
    assert "learning_rate" in loaded.ignored


def test_an_open_axis_takes_what_is_left(tmp_path):
    content = {**FILE, "dcn_data_parallelism": -1}
    assert load(tmp_path, content).gpus is None
    loaded = load(tmp_path, content, gpus=512, gpus_given=True)
    assert loaded.workload(512).recipe.global_batch_size == 1024
    with pytest.raises(InputError, match="product of the axes"):
        load(tmp_path, FILE, gpus=64, gpus_given=True)


def test_words_over_the_file_and_a_model(tmp_path):
    assert load(tmp_path, FILE, overrides={"per_device_batch_size": 4}).workload().recipe.micro_batch_size == 4
    assert load(tmp_path, FILE, model="llama2_7b").model.name == "llama2_7b"
    assert detect.takes_overrides(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"per_device_batchsize": 2}, "nearest: per_device_batch_size"),
        ({"model_name": "nobody-7b"}, "model_name"),
        ({"base_config": "mine.yml"}, "base_config"),
        ({"per_device_batch_size": None, "max_target_length": "x"}, "max_target_length"),
        ({"remat_policy": "some"}, "remat_policy"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, change, named):
    with pytest.raises(InputError, match=named):
        load(tmp_path, {**FILE, **change})


def test_an_architecture_alone_is_no_run(tmp_path):
    with pytest.raises(InputError, match="architecture alone"):
        load(tmp_path, {"base_emb_dim": 4096, "base_num_decoder_layers": 32})
    loaded = load(tmp_path, {key: value for key, value in FILE.items() if key != "per_device_batch_size"})
    assert any(text.startswith("per_device_batch_size=12") for text in loaded.assumed)


@pytest.mark.parametrize(
    ("content", "tool"),
    [
        ({"run": {"name": "x"}, "trainer": {"num_nodes": 2, "devices": 8}, "data": {}}, "NeMo"),
        ({"defaults": ["_self_"], "trainer": {"num_nodes": 2, "devices": 8}}, "NeMo.*defaults"),
        ({"pipe-parallel-size": 4, "model-parallel-size": 2, "num-layers": 44, "hidden-size": 6144}, "GPT-NeoX"),
        ({"system": {"tensor_model_parallel_size": 8}, "model": {"num_layers": 80}, "data": {}}, "FlagScale"),
        ({"tokens": {"micro_batch_size": 3}, "parallelism": {"dp": 2}, "model": {}}, "nanotron"),
        ({"base_model": "x", "datasets": []}, "Axolotl"),
        ({"base_model": "x", "model_type": "LlamaForCausalLM", "adapter": "lora", "fsdp_config": {}}, "Axolotl"),
        ({"model": {"d_model": 8, "n_layers": 2}, "tokenizer": {"identifier": "x"}, "fsdp_config": {}}, "OLMo"),
        ({"recipe": "Train", "step_scheduler": {"local_batch_size": 1}, "model": {"_target_": "x"}}, "AutoModel"),
        ({"train": {"train_iters": 9, "micro_batch_size": 1}, "model": {"seq_length": 8}}, "Megatron-Bridge"),
        ({"train_batch_size": 8, "steps_per_print": 1}, "DeepSpeed.*nothing of the model"),
        ({"model": {"_component_": "torchtune.models.llama2"}}, "torchtune"),
    ],
)  # fmt: skip
def test_files_of_other_trainers_are_named(tmp_path, content, tool):
    file = tmp_path / "c.json"
    file.write_text(json.dumps(content))
    with pytest.raises(Unsupported, match=tool):
        detect.load(file)


def test_a_file_of_no_known_tool_is_told_what_is_read(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("model: {kind: new}\nlaunch: {hosts: 2}\nloop: {}\n")
    with pytest.raises(InputError, match=r"model, launch, loop.*Primus.*torchtitan.*MaxText.*Megatron-LM") as caught:
        detect.load(file)
    assert len(caught.value.problems) == 1
    program = tmp_path / "llama3.py"
    program.write_text("def llama3_8b():\n    return dict(seq_len=8192)\n")
    with pytest.raises(InputError, match=r"a Python program.*torchtitan.*MaxText"):
        detect.load(program)
