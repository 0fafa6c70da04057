"""MaxText's configuration files, and those of trainers that are named and not read."""

from __future__ import annotations

import json

import pytest
import yaml

from projector.errors import InputError, Unsupported
from projector.intake import detect
from projector.workload.parameters import count

FILE = {
    "base_config": "base.yml", "model_name": "llama3.1-70b", "hardware": "gpu", "dcn_data_parallelism": 2,
    "dcn_fsdp_parallelism": 16, "ici_fsdp_parallelism": 8, "per_device_batch_size": 2, "max_target_length": 8192,
    "learning_rate": 0.001, "attention": "cudnn_flash_te", "remat_policy": "full", "dataset_type": "synthetic",
}  # fmt: skip


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
    assert not recipe.use_precision_aware_optimizer  # weight_dtype of base.yml is float32
    half = load(tmp_path, {**FILE, "weight_dtype": "bfloat16"}).workload().recipe
    assert (half.main_params_dtype, half.exp_avg_dtype) == ("bf16", "bf16")
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
        *(({"model_name": name}, "model_name") for name in ("nobody-7b", "llama3.1-70b (mine)", "gpt3-52k", "mixtral")),
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
        ({"system": {"tensor_model_parallel_size": 8}, "model": {"num_layers": 80}, "data": {}}, "FlagScale"),
        ({"tokens": {"micro_batch_size": 3}, "parallelism": {"dp": 2}, "model": {}}, "nanotron"),
        ({"base_model": "x", "datasets": []}, "Axolotl"),
        ({"base_model": "x", "model_type": "LlamaForCausalLM", "adapter": "lora", "fsdp_config": {}}, "Axolotl"),
        ({"model": {"d_model": 8, "n_layers": 2}, "tokenizer": {"identifier": "x"}, "fsdp_config": {}}, "OLMo"),
        ({"recipe": "Train", "step_scheduler": {"local_batch_size": 1}, "model": {"_target_": "x"}}, "AutoModel"),
        ({"train": {"train_iters": 9, "micro_batch_size": 1}, "model": {"seq_length": 8}}, "Megatron-Bridge"),
        ({"train_batch_size": 8, "steps_per_print": 1}, "DeepSpeed.*nothing of the model"),
        ({"model": {"_component_": "torchtune.models.llama2"}}, "torchtune"),
        ({"trainer": {"devices": 32, "num_nodes": 4}, "model": {"micro_batch_size": 1, "global_batch_size": 64},
          "distributed_strategy": {"tensor_model_parallel_size": 8}}, "neuronx"),
        ({"trainer": {"train_batch_size": 512}, "data": {"id": "x"}, "model": {"type": "llama"}}, "levanter"),
        ({"distributed_type": "FSDP", "num_processes": 8, "fsdp_config": {"fsdp_version": 2}}, "Accelerate"),
        ({"experiment_name": "x", "actor": {"path": "x"}, "gconfig": {}}, "AReaL"),
        ({"policy": {"model_name": "x"}, "loss_fn": {}}, "NeMo RL"),
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


def test_the_sizes_of_a_file_mean_nothing_beside_a_models_name(tmp_path):
    base = {"base_emb_dim": 2048, "base_num_decoder_layers": 16, "vocab_size": 32000, "num_experts": 1}
    loaded = load(tmp_path, {**FILE, **base, "base_mlp_dim": 100})
    assert loaded.model == load(tmp_path, FILE).model
    assert "base_mlp_dim of llama3.1-70b, not 100" in loaded.assumed
    words = load(tmp_path, {**FILE, **base}, overrides={"base_num_decoder_layers": 8})
    assert (words.model.num_layers, words.model.hidden_size) == (8, 8192)
    nameless = {key: value for key, value in FILE.items() if key != "model_name"}
    assert load(tmp_path, {**nameless, **base}).model.num_layers == 16


def test_a_scale_doubles_heads_and_mlp_then_width_then_layers(tmp_path):
    nameless = {key: value for key, value in FILE.items() if key != "model_name"}
    counts = []
    for scale in (1, 2, 4, 8, 64, 128):
        model = load(tmp_path, {**nameless, "global_parameter_scale": scale}).model
        counts.append(count(model).total / scale)
        doubled = (model.num_layers // 16) * (model.hidden_size // 2048) * (model.ffn_hidden_size // 7168)
        assert doubled == scale
        assert model.num_attention_heads * 7168 == model.ffn_hidden_size * 16
    assert max(counts[-2:]) < 1.0e9  # the embedding grows less than the layers
    with pytest.raises(InputError, match="power of two"):
        load(tmp_path, {**nameless, "global_parameter_scale": 6})
    with pytest.raises(Unsupported, match="made larger"):
        load(tmp_path, {**FILE, "global_parameter_scale": 2})


def test_another_loss_is_no_pretraining(tmp_path):
    with pytest.raises(Unsupported, match="preference"):
        load(tmp_path, {**FILE, "use_dpo": True})
    with pytest.raises(Unsupported, match="teacher"):
        load(tmp_path, {**FILE, "student_overrides": {}, "teacher_overrides": {"model_name": "llama3.1-70b"}})
    assert load(tmp_path, {**FILE, "student_overrides": {}, "teacher_overrides": {}}).recipe
