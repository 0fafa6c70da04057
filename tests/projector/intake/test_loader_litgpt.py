"""LitGPT's configurations of pre-training, its command line, and what is refused."""

from __future__ import annotations

import pytest
import yaml

from projector.errors import InputError, Unsupported
from projector.intake import detect
from projector.workload.validate import problems

#: config_hub/pretrain/tinyllama.yaml, without what changes nothing.
FILE = {
    "model_name": "tiny-llama-1.1b", "precision": "bf16-mixed", "data": "TinyLlama",
    "train": {"global_batch_size": 512, "micro_batch_size": 4, "max_seq_length": 2048, "lr_warmup_steps": 2000},
    "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 4e-4}}, "devices": "auto", "num_nodes": 1,
}  # fmt: skip


def load(folder, changes=(), **given):
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump({**FILE, **dict(changes)}))
    return detect.load(file, **given)


def test_a_whole_configuration(tmp_path):
    loaded = load(tmp_path)
    recipe = loaded.recipe
    assert (loaded.model.name, loaded.framework, loaded.gpus) == ("tinyllama_1.1b", "pytorch", None)
    assert (recipe.micro_batch_size, recipe.global_batch_size, recipe.seq_length) == (4, 512, 2048)
    assert (recipe.precision, recipe.data_parallel_sharding, recipe.torch_compile) == (
        "bf16",
        "optim_grads_params",
        True,
    )
    assert (recipe.recompute_granularity, recipe.optimizer, recipe.main_params_dtype) == ("none", "adamw", None)
    assert problems(loaded.workload(8)) == ()


def test_weights_are_shared_out_inside_a_node(tmp_path):
    loaded = load(tmp_path, {"devices": 8, "num_nodes": 4, "precision": "bf16-true"})
    assert (loaded.gpus, loaded.recipe.data_parallel_shard_size) == (32, 8)
    assert loaded.recipe.main_params_dtype == "bf16"


def test_what_it_leaves_out_is_litgpts(tmp_path):
    bare = {"model_name": "TinyLlama-1.1B", "train": {"lr_warmup_steps": 1}}
    file = tmp_path / "bare.yaml"
    file.write_text(yaml.safe_dump(bare))
    recipe = detect.load(file).recipe
    assert (recipe.micro_batch_size, recipe.global_batch_size, recipe.seq_length, recipe.precision) == (
        4, 512, 2048, "bf16",
    )  # fmt: skip


#: Other trainings, and what does not fit: the changes, and what the refusal names.
REFUSED = {
    Unsupported: [
        ({"data": "Alpaca"}, "data=Alpaca"),
        ({"data": {"class_path": "litgpt.data.JSON"}}, "data=JSON"),
        ({"model_config": {"n_layer": 2}}, "model_config"),
        ({"checkpoint_dir": "checkpoints/x"}, "fine-tuning"),
    ],
    InputError: [
        ({"model_name": "somebody-1b"}, "--model"),
        ({"precision": "int8"}, "precision"),
        ({"optimizer": "Shampoo"}, "optimizer"),
        ({"train": {**FILE["train"], "micro_batch_size": "many"}}, "micro_batch_size"),
        ({"train": {**FILE["train"], "tie_embeddings": True}}, "tie_embeddings"),
        ({"train": {**FILE["train"], "global_batch_sise": 8}}, "global_batch_size"),
    ],
}


def test_words_stand_over_the_file(tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(FILE))
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\nlitgpt pretrain --config tiny.yaml --devices 8 --train.micro_batch_size=2\n")
    loaded = detect.load(script)
    assert (loaded.gpus, loaded.recipe.micro_batch_size, loaded.recipe.global_batch_size) == (8, 2, 512)
    script.write_text("#!/bin/bash\nlitgpt pretrain meta-llama/Llama-3.2-1B --devices 8 --train.max_seq_length 4096\n")
    loaded = detect.load(script)
    assert (loaded.gpus, loaded.model.name, loaded.recipe.seq_length) == (8, "llama3.2_1b", 4096)
    script.write_text("#!/bin/bash\nlitgpt finetune_full meta-llama/Llama-3.2-1B --data JSON\n")
    with pytest.raises(Unsupported, match="fine-tuning"):
        detect.load(script)
