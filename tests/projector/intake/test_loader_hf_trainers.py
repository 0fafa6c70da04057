"""Axolotl's and LLaMA-Factory's configurations: packed samples, ZeRO, FSDP, adapters, command lines, and what is refused."""

from __future__ import annotations

import json

import pytest
import yaml

from projector.errors import InputError, Unsupported
from projector.intake import detect
from projector.workload.validate import problems

AXOLOTL = {
    "base_model": "NousResearch/Meta-Llama-3.1-8B", "datasets": [{"path": "tatsu-lab/alpaca", "type": "alpaca"}],
    "sequence_len": 8192, "sample_packing": True, "gradient_accumulation_steps": 8, "micro_batch_size": 2,
    "optimizer": "paged_adamw_8bit", "bf16": "auto", "gradient_checkpointing": True,
    "attn_implementation": "flash_attention_2", "learning_rate": 2e-5,
}  # fmt: skip
FACTORY = {
    "model_name_or_path": "Qwen/Qwen3-4B-Instruct-2507", "stage": "sft", "do_train": True, "finetuning_type": "full",
    "packing": True, "cutoff_len": 4096, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4,
    "learning_rate": 1e-5, "bf16": True,
}  # fmt: skip


TRAINER = {
    "model_name_or_path": "Qwen/Qwen3-4B", "per_device_train_batch_size": 2, "max_length": 4096,
    "gradient_checkpointing": True,
}  # fmt: skip


def load(folder, base, changes=(), **given):
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump({**base, **dict(changes)}))
    return detect.load(file, **given)


def test_a_whole_configuration_of_axolotl(tmp_path):
    loaded = load(tmp_path, AXOLOTL)
    recipe = loaded.recipe
    assert (loaded.model.name, loaded.framework, loaded.gpus) == ("llama3.1_8b", "pytorch", None)
    assert (recipe.micro_batch_size, recipe.seq_length, recipe.precision) == (2, 8192, "bf16")
    assert (recipe.optimizer, recipe.attention_backend, recipe.recompute_granularity) == ("adam_8bit", "fa2", "full")
    assert (recipe.data_parallel_sharding, recipe.main_params_dtype) == ("no_shard", "bf16")
    assert loaded.workload(8).recipe.global_batch_size == 2 * 8 * 8
    assert problems(loaded.workload(8)) == ()


def test_a_whole_configuration_of_llama_factory(tmp_path):
    loaded = load(tmp_path, FACTORY)
    recipe = loaded.recipe
    assert (loaded.model.name, loaded.framework, loaded.unmodelled) == ("qwen3_4b", "pytorch", ())
    assert (recipe.micro_batch_size, recipe.seq_length, recipe.precision) == (2, 4096, "bf16")
    assert (recipe.optimizer, recipe.recompute_granularity, recipe.main_params_dtype) == ("adamw", "full", None)
    assert loaded.workload(8).recipe.global_batch_size == 2 * 4 * 8
    assert problems(loaded.workload(8)) == ()


def test_what_llama_factory_leaves_out_is_its_own(tmp_path):
    bare = {"model_name_or_path": "Qwen/Qwen3-8B", "stage": "pt", "finetuning_type": "lora", "bf16": True}
    recipe = load(tmp_path, bare).recipe
    assert (recipe.micro_batch_size, recipe.seq_length, recipe.lora.dim) == (8, 2048, 8)
    assert recipe.lora.targets == ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    loose = load(tmp_path, {**bare, "packing": False})
    assert loose.unmodelled == ("samples shorter than 2048 tokens (all are counted as that long)",)


@pytest.mark.parametrize("base", [AXOLOTL, FACTORY])
@pytest.mark.parametrize(
    ("stage", "sharding"), [(0, "no_shard"), (1, "optim"), (2, "optim_grads"), (3, "optim_grads_params")]
)
def test_zero_is_that_of_the_file_beside_or_above(tmp_path, base, stage, sharding):
    (tmp_path / "ds").mkdir()
    zero = {"stage": stage, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    (tmp_path / "ds" / "zero.json").write_text(json.dumps({"zero_optimization": zero, "train_batch_size": "auto"}))
    (tmp_path / "runs").mkdir()
    loaded = load(tmp_path / "runs", base, {"deepspeed": "ds/zero.json"})
    assert (loaded.framework, loaded.recipe.data_parallel_sharding) == ("deepspeed", sharding)
    assert loaded.recipe.optimizer_cpu_offload is True
    assert any("offload_param" in text for text in loaded.unmodelled)
    with pytest.raises(InputError, match=r"deepspeed.*gone"):
        load(tmp_path / "runs", base, {"deepspeed": "ds/gone.json"})


@pytest.mark.parametrize(
    ("stated", "sharding", "recompute"),
    [
        ({"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True}}, "optim_grads_params", "full"),
        (
            {"fsdp": ["full_shard", "auto_wrap"], "fsdp_config": {"fsdp_offload_params": False}},
            "optim_grads_params",
            "full",
        ),
        ({"fsdp_config": {"fsdp_sharding_strategy": "SHARD_GRAD_OP"}}, "optim_grads", "full"),
        (
            {"gradient_checkpointing": None, "fsdp_config": {"activation_checkpointing": True}},
            "optim_grads_params",
            "full",
        ),
        ({"gradient_checkpointing": None, "fsdp_config": {"offload_params": False}}, "optim_grads_params", "none"),
    ],
)
def test_fsdp_of_axolotl(tmp_path, stated, sharding, recompute):
    recipe = load(tmp_path, AXOLOTL, stated).recipe
    assert (recipe.data_parallel_sharding, recipe.recompute_granularity) == (sharding, recompute)


def test_adapters(tmp_path):
    lora = {
        "adapter": "lora", "lora_r": 32, "lora_target_modules": ["q_proj", "v_proj", "down_proj"], "lora_dropout": 0.05,
    }  # fmt: skip
    loaded = load(tmp_path, AXOLOTL, lora)
    assert (loaded.recipe.lora.dim, loaded.recipe.lora.targets) == (32, ("linear_qkv", "linear_fc2"))
    assert "lora_dropout=0.05" in loaded.unmodelled
    every = load(tmp_path, AXOLOTL, {"adapter": "lora", "lora_r": 16, "lora_target_linear": True}).recipe.lora
    assert every.targets == ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    some = load(
        tmp_path, FACTORY, {"finetuning_type": "lora", "lora_rank": 4, "lora_target": "q_proj,o_proj"}
    ).recipe.lora
    assert (some.dim, some.targets) == (4, ("linear_qkv", "linear_proj"))


@pytest.mark.parametrize(
    ("base", "changes", "named"),
    [
        (AXOLOTL, {"sample_packing": False}, "lengths that nothing states"),
        (AXOLOTL, {"adapter": "qlora"}, "adapter=qlora"),
        (AXOLOTL, {"load_in_8bit": True}, "load_in_8bit"),
        (AXOLOTL, {"rl": "dpo"}, "rl=dpo"),
        (AXOLOTL, {"gradient_checkpointing": "offload"}, "gradient_checkpointing=offload"),
        (AXOLOTL, {"processor_type": "AutoProcessor"}, "processor_type"),
        (AXOLOTL, {"lisa_n_layers": 4}, "lisa_n_layers"),
        (FACTORY, {"stage": "dpo"}, "stage=dpo"),
        (FACTORY, {"finetuning_type": "freeze"}, "finetuning_type=freeze"),
        (FACTORY, {"quantization_bit": 4}, "quantization_bit=4"),
        (FACTORY, {"use_galore": True}, "use_galore"),
        (FACTORY, {"do_train": False, "do_predict": True}, "nothing is trained"),
        *((TRAINER, {word: 0.1}, "preference training") for word in ("beta", "max_prompt_length", "num_generations")),
    ],
)
def test_other_trainings_are_refused(tmp_path, base, changes, named):
    with pytest.raises(Unsupported, match=named):
        load(tmp_path, base, changes)


@pytest.mark.parametrize(
    ("base", "changes", "named"),
    [
        (AXOLOTL, {"base_model": "somebody/else"}, "base_model.*--model"),
        (AXOLOTL, {"sequence_len": "long"}, "sequence_len"),
        (AXOLOTL, {"optimizer": "shampoo"}, "optimizer"),
        (AXOLOTL, {"fsdp_config": {"sharding_strategy": "HALF_SHARD"}}, "half_shard.*hybrid_shard"),
        (FACTORY, {"fsdp": "half_shard auto_wrap"}, "half_shard.*hybrid_shard"),
        (
            FACTORY,
            {"fsdp": "half_shard", "fsdp_config": {"sharding_strategy": "FULL_SHARD"}},
            "half_shard.*hybrid_shard",
        ),
        (FACTORY, {"fsdp": "full_shard", "fsdp_config": "gone.json"}, "fsdp_config.*gone"),
        (TRAINER, {"deepspeed": True}, "a switch without a file"),
        (AXOLOTL, {"gradient_acumulation_steps": 2}, "gradient_accumulation_steps"),
        (FACTORY, {"model_name_or_path": "somebody/else"}, "model_name_or_path.*--model"),
        (FACTORY, {"cutoff_len": "long"}, "cutoff_len"),
        (FACTORY, {"optim": "shampoo"}, "optim: found .shampoo"),
        (FACTORY, {"per_device_train_batch_sise": 2}, "per_device_train_batch_size"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, base, changes, named):
    with pytest.raises(InputError, match=named):
        load(tmp_path, base, changes)


@pytest.mark.parametrize(
    ("base", "command", "gpus", "micro"),
    [
        (AXOLOTL, "axolotl train own.yaml --micro-batch-size 4", None, 4),
        (AXOLOTL, "accelerate launch --num_processes 16 -m axolotl.cli.train own.yaml", 16, 2),
        (FACTORY, "NNODES=2 NPROC_PER_NODE=8 llamafactory-cli train own.yaml per_device_train_batch_size=4", 16, 4),
        (FACTORY, "FORCE_TORCHRUN=1 llamafactory-cli train own.yaml", None, 2),
    ],
)
def test_a_script_names_the_file(tmp_path, base, command, gpus, micro):
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(base))
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/bash\n{command}\n")
    loaded = detect.load(script)
    assert (loaded.gpus, loaded.recipe.micro_batch_size) == (gpus, micro)


FULL, GRADIENTS = "optim_grads_params", "optim_grads"


@pytest.mark.parametrize("base", [AXOLOTL, FACTORY])
@pytest.mark.parametrize(
    ("word", "sharding", "offloaded", "told"),
    [
        ("full_shard auto_wrap", FULL, None, False),
        ("shard_grad_op auto_wrap offload", GRADIENTS, True, False),
        ("no_shard", "no_shard", None, False),
        ("hybrid_shard auto_wrap", FULL, None, True),
        ("hybrid_shard_zero2", GRADIENTS, None, True),
    ],
)
def test_words_of_fsdp(tmp_path, base, word, sharding, offloaded, told):
    loaded = load(tmp_path, base, {"fsdp": word})
    assert (loaded.recipe.data_parallel_sharding, loaded.recipe.optimizer_cpu_offload) == (sharding, offloaded)
    assert any("--data-parallel-shard-size" in text for text in loaded.unmodelled) == told


FSDP = {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_machines": 2, "num_processes": 16}
ZERO = {"distributed_type": "DEEPSPEED", "num_machines": 2, "num_processes": 16}


@pytest.mark.parametrize(
    ("file", "options", "gpus", "sharding", "offloaded"),
    [
        (FSDP | {"fsdp_config": {"fsdp_sharding_strategy": "SHARD_GRAD_OP"}}, "", 16, GRADIENTS, None),
        (FSDP | {"fsdp_config": {"fsdp_offload_params": True}}, "--num_processes 8", 8, FULL, True),
        (ZERO | {"deepspeed_config": {"zero_stage": 3, "offload_optimizer_device": "cpu"}}, "", 16, FULL, True),
        (ZERO | {"deepspeed_config": {"deepspeed_config_file": "ds.json"}}, "", 16, "optim", None),
        ({"num_machines": 1, "num_processes": 4}, "", 4, "no_shard", None),
        (None, "--num_processes 8 --use_fsdp --fsdp_sharding_strategy 2", 8, GRADIENTS, None),
        (None, "--num_processes 8 --use_deepspeed --zero_stage 3 --offload_optimizer_device cpu", 8, FULL, True),
        (None, "--num_processes 8 --use_deepspeed", 8, GRADIENTS, None),
    ],
)
@pytest.mark.parametrize("program", ["-m axolotl.cli.train own.yaml", "train.py"])
def test_accelerate_hands_on_what_its_file_and_options_say(tmp_path, program, file, options, gpus, sharding, offloaded):
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(AXOLOTL))
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    if file:
        (tmp_path / "acc.yaml").write_text(yaml.safe_dump({"compute_environment": "LOCAL_MACHINE", **file}))
    words = "" if "own" in program else " ".join(f"--{k} {v}" for k, v in FACTORY.items() if k != "finetuning_type")
    named = "--config_file acc.yaml" if file else ""
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\naccelerate launch {named} {options} {program} {words}\n")
    loaded = detect.load(tmp_path / "run.sh")
    assert (loaded.gpus, loaded.recipe.data_parallel_sharding) == (gpus, sharding)
    assert loaded.recipe.optimizer_cpu_offload is offloaded
    assert loaded.framework == ("deepspeed" if "deepspeed" in f"{file} {options}" else "pytorch")


@pytest.mark.parametrize(
    ("file", "error", "named"),
    [
        (FSDP | {"mixed_precision": "fp9"}, InputError, "mixed_precision.*bf16"),
        (FSDP | {"distributed_type": "RINGS"}, InputError, "distributed_type.*fsdp"),
        (FSDP | {"use_megatron_lm": True}, Unsupported, "use_megatron_lm"),
        (None, InputError, "gone.yaml.*beside"),
    ],
)
def test_what_accelerate_may_not_say(tmp_path, file, error, named):
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(AXOLOTL))
    if file:
        (tmp_path / "gone.yaml").write_text(yaml.safe_dump(file))
    (tmp_path / "run.sh").write_text("accelerate launch --config_file gone.yaml -m axolotl.cli.train own.yaml\n")
    with pytest.raises(error, match=named):
        detect.load(tmp_path / "run.sh")


def test_what_accelerate_says_and_nobody_knows_is_told(tmp_path):
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(AXOLOTL))
    stated = {**FSDP, "a_new_way": "fast", "fsdp_config": {"fsdp_a_kernel": "new"}}
    (tmp_path / "acc.yaml").write_text(yaml.safe_dump(stated))
    (tmp_path / "run.sh").write_text("accelerate launch --config_file acc.yaml -m axolotl.cli.train own.yaml\n")
    assert {"a_new_way=fast (unknown)", "fsdp_config.a_kernel=new (unknown)"} <= set(
        detect.load(tmp_path / "run.sh").unmodelled
    )


@pytest.mark.parametrize("base", [AXOLOTL | {"adapter": "lora", "lora_r": 8}, FACTORY | {"finetuning_type": "lora"}])
def test_layers_that_nobody_knows_are_not_adapted_in_silence(tmp_path, base):
    key = "lora_target_modules" if "adapter" in base else "lora_target"
    loaded = load(tmp_path, base, {key: "q_proj,w9"})
    assert loaded.recipe.lora.targets == ("linear_qkv",)
    assert "lora_target=w9" in loaded.unmodelled


def test_copies_of_axolotl_are_told_where_nothing_says_of_how_many_ranks(tmp_path):
    sharded = {"fsdp": ["full_shard"]}
    told = load(tmp_path, AXOLOTL, {**sharded, "dp_replicate_size": 2}).unmodelled
    assert any("dp_replicate_size=2" in text for text in told)
    with pytest.raises(InputError, match="dp_shard_size: found 4, expected fsdp_config beside it"):
        load(tmp_path, AXOLOTL, {"dp_shard_size": 4})


def test_what_names_no_type_is_said_to_be_in_single_precision(tmp_path):
    assert any(text.startswith("precision=fp32 (") for text in load(tmp_path, TRAINER).assumed)
    for stated in ({"bf16": True}, {"bf16": False}, {"fp16": True}):
        assert not any(text.startswith("precision=") for text in load(tmp_path, TRAINER, stated).assumed)


def test_what_is_missing_has_the_name_that_the_tool_has_for_it(tmp_path):
    bare = {key: value for key, value in TRAINER.items() if key != "max_length"}
    with pytest.raises(InputError, match="max_seq_length: found 'nothing'"):
        load(tmp_path, bare)
    with pytest.raises(InputError, match="optim: found 'shampoo'"):
        load(tmp_path, TRAINER, {"optim": "shampoo"})
