"""torchtune's configurations: packed samples, adapters, builders by name, its command line, and what is refused."""

from __future__ import annotations

import copy

import pytest
import yaml

from projector.errors import InputError, Unsupported
from projector.intake import detect
from projector.workload.validate import problems

FILE = {
    "output_dir": "/tmp/out",
    "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 8192},
    "dataset": {"_component_": "torchtune.datasets.alpaca_cleaned_dataset", "packed": True},
    "model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"}, "batch_size": 2, "gradient_accumulation_steps": 4,
    "optimizer": {"_component_": "torch.optim.AdamW", "fused": True},
    "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"}, "enable_activation_checkpointing": True,
    "compile": False, "dtype": "bf16", "epochs": 1,
}  # fmt: skip
_LORA = {
    "_component_": "torchtune.models.llama3_1.lora_llama3_1_8b",
    "lora_attn_modules": ["q_proj", "k_proj", "v_proj", "output_proj"],
    "apply_lora_to_mlp": True,
    "lora_rank": 16,
}


def load(folder, changes=(), **given):
    content = copy.deepcopy(FILE)
    for path, value in dict(changes).items():
        first, dot, last = path.partition(".")
        if dot:
            content[first][last] = value
        else:
            content[first] = value
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(content))
    return detect.load(file, **given)


def test_a_whole_configuration(tmp_path):
    loaded = load(tmp_path)
    recipe = loaded.recipe
    assert (loaded.model.name, loaded.framework, loaded.gpus) == ("llama3.1_8b", "torchtune", None)
    assert (recipe.micro_batch_size, recipe.seq_length, recipe.precision) == (2, 8192, "bf16")
    assert (recipe.data_parallel_sharding, recipe.recompute_granularity) == ("optim_grads_params", "full")
    assert (recipe.optimizer, recipe.exp_avg_dtype, recipe.torch_compile) == ("adamw", "bf16", False)
    assert loaded.workload(16).recipe.global_batch_size == 2 * 4 * 16
    assert problems(loaded.workload(16)) == ()
    assert [text for text in loaded.unmodelled if "dataset.packed" not in text] == []


def test_ranks_of_tensor_parallelism_share_a_batch(tmp_path):
    loaded = load(tmp_path, {"tensor_parallel_dim": 4, "data_parallel_replicate_dim": 2, "data_parallel_shard_dim": 2})
    assert loaded.workload(16).recipe.global_batch_size == 2 * 4 * 4
    assert loaded.recipe.data_parallel_shard_size == 2


def test_adapters(tmp_path):
    recipe = load(tmp_path, {"model": _LORA}).recipe
    assert (recipe.lora.dim, recipe.lora.targets) == (16, ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"))
    told = load(
        tmp_path, {"model": {**_LORA, "lora_attn_modules": ["q_proj", "v_proj"], "lora_dropout": 0.1}}
    ).unmodelled
    assert any(text.startswith("lora_attn_modules=q_proj, v_proj") for text in told)
    assert "model.lora_dropout=0.1" in told
    assert (
        "model.max_seq_len=131072 (unknown)" in load(tmp_path, {"model": {**_LORA, "max_seq_len": 131072}}).unmodelled
    )


@pytest.mark.parametrize(
    ("builder", "name"),
    [
        ("qwen2_5.lora_qwen2_5_0_5b", "qwen2.5_0.5b"),
        ("qwen2_5.qwen2_5_7b_instruct", "qwen2.5_7b"),
        ("qwen3.qwen3_0_6b_instruct", "qwen3_0.6b"),
        ("llama3_2.llama3_2_3b", "llama3.2_3b"),
        ("gemma.gemma_2b", "gemma_2b"),
        ("phi3.phi3_mini", "phi_3_mini"),
        ("llama4.llama4_scout_17b_16e", "llama4_scout"),
    ],
)
def test_a_builder_names_a_model(tmp_path, builder, name):
    assert load(tmp_path, {"model": {"_component_": f"torchtune.models.{builder}"}}).model.name == name


def test_a_builder_without_a_window_makes_a_model_without_one(tmp_path):
    assert load(tmp_path, {"model": {"_component_": "torchtune.models.mistral.mistral_7b"}}).model.window_size is None


#: Other trainings, and what does not fit: the changes, and what the refusal names.
REFUSED = {
    Unsupported: [
        ({"dataset.packed": False}, "lengths that nothing states"),
        ({"model._component_": "torchtune.models.llama3_1.qlora_llama3_1_8b"}, "4 bits"),
        ({"model": {**_LORA, "quantize_base": True}}, "4 bits"),
        ({"model._component_": "torchtune.models.llama3_2_vision.llama3_2_vision_11b"}, "sees"),
        ({"loss._component_": "torchtune.rlhf.loss.DPOLoss"}, "preferences"),
        ({"teacher_model": {}}, "teacher_model"),
        ({"enable_activation_offloading": True}, "host"),
        ({"ac_mode": "selective"}, "ac_mode"),
    ],
    InputError: [
        ({"tokenizer.max_seq_len": None}, "tokenizer.max_seq_len"),
        ({"batch_size": "many"}, "batch_size"),
        ({"dtype": "int8"}, "dtype"),
        ({"optimizer._component_": "my.Shampoo"}, "optimizer"),
        ({"model._component_": "torchtune.models.llama2.llama2"}, "--model"),
        ({"data_parallel_replicate_dim": 2}, "data_parallel_shard_dim"),
        ({"gradient_acumulation_steps": 2}, "gradient_accumulation_steps"),
    ],
}


def test_words_stand_over_the_file(tmp_path):
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**FILE, "dataset": {"packed": False}}))
    script = tmp_path / "run.sh"
    start = "#!/bin/bash\ntune run --nnodes 2 --nproc_per_node 8 full_finetune_distributed --config own.yaml "
    script.write_text(start + "dataset.packed=True batch_size=3 output_dir=$OUT\n")
    loaded = detect.load(script)
    assert (loaded.gpus, loaded.recipe.micro_batch_size) == (16, 3)
    script.write_text(start + "dataset.packed=True batch_size=$BS\n")
    with pytest.raises(InputError, match=r"batch_size.*BS"):
        detect.load(script)
    script.write_text("tune run lora_finetune_single_device --config llama3/8B_lora\n")
    with pytest.raises(InputError, match="llama3/8B_lora"):
        detect.load(script)
