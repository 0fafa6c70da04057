"""Files of trainers that are named and not read, and of nobody."""

from __future__ import annotations

import json

import pytest

from projector.errors import InputError, Unsupported
from projector.intake import detect


@pytest.mark.parametrize(
    ("content", "tool"),
    [
        ({"run": {"name": "x"}, "trainer": {"num_nodes": 2, "devices": 8}, "data": {}}, "NeMo"),
        ({"defaults": ["_self_"], "trainer": {"num_nodes": 2, "devices": 8}}, "NeMo.*defaults"),
        ({"experiment": {"runner": {}, "task": {}}, "defaults": []}, "FlagScale"),
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
