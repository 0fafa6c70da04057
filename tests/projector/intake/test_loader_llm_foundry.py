"""llm-foundry's configurations: references, sharding, MPT's own defaults, and what is refused."""

from __future__ import annotations

import pytest

from projector.errors import InputError, Unsupported
from projector.intake import detect, huggingface
from projector.workload.parameters import count
from projector.workload.validate import problems
from tests.workloads import written

FILE = {
    "variables": {"max_seq_len": 2048, "global_seed": 1},
    "max_seq_len": "${variables.max_seq_len}",
    "model": {
        "name": "mpt_causal_lm",
        "init_device": "meta",
        "d_model": 8192,
        "n_heads": 64,
        "n_layers": 80,
        "expansion_ratio": 4,
        "max_seq_len": "${max_seq_len}",
        "vocab_size": 50368,
        "no_bias": True,
        "attn_config": {"attn_impl": "flash"},
    },
    "train_loader": {"name": "text", "dataset": {"split": "train"}},
    "optimizer": {"name": "decoupled_adamw", "lr": 1.0e-4},
    "algorithms": {"gradient_clipping": {"clipping_type": "norm"}},
    "global_train_batch_size": 2048,
    "device_train_microbatch_size": 4,
    "precision": "amp_bf16",
    "fsdp_config": {"sharding_strategy": "FULL_SHARD", "mixed_precision": "PURE", "activation_checkpointing": True},
}


def load(folder, changes=(), **given):
    return detect.load(written(folder / "run.yaml", FILE, dict(changes)), **given)


def test_a_whole_configuration(tmp_path):
    loaded = load(tmp_path)
    recipe = loaded.recipe
    norms = (2 * 80 + 1) * 8192
    assert count(loaded.model).total == pytest.approx((50368 + 2048) * 8192 + 80 * 12 * 8192**2 + norms, abs=norms)
    assert (loaded.framework, loaded.gpus, loaded.unmodelled) == ("llm-foundry", None, ())
    assert (recipe.seq_length, recipe.micro_batch_size, recipe.global_batch_size) == (2048, 4, 2048)
    assert (recipe.precision, recipe.optimizer, recipe.grad_reduce_in_bf16) == ("bf16", "adamw", True)
    assert (recipe.data_parallel_sharding, recipe.recompute_granularity) == ("optim_grads_params", "full")
    assert loaded.workload(512).padded_vocab_size == 50368
    assert problems(loaded.workload(512)) == ()


def test_what_mpt_leaves_out_is_llm_foundrys(tmp_path):
    model = load(tmp_path, {"model": {"name": "mpt_causal_lm"}}).model
    assert (model.num_layers, model.hidden_size, model.ffn_hidden_size, model.vocab_size) == (24, 2048, 8192, 50368)
    assert (model.add_bias_linear, model.position_embedding_type) == (True, "learned_absolute")


def test_without_a_section_gradients_are_reduced_and_nothing_is_sharded(tmp_path):
    recipe = load(tmp_path, {"fsdp_config": None, "optimizer.name": "decoupled_lionw"}).recipe
    assert (recipe.data_parallel_sharding, recipe.recompute_granularity) == ("no_shard", "none")
    assert (recipe.grad_reduce_in_bf16, recipe.optimizer) == (None, "lion")
    kept = load(tmp_path, {"fsdp_config": {"sharding_strategy": "SHARD_GRAD_OP"}}).recipe
    assert (kept.data_parallel_sharding, kept.grad_reduce_in_bf16) == ("optim_grads", False)


def test_attention_and_mlp_of_mpt():
    config = {
        "model_type": "mpt", "d_model": 1024, "n_heads": 16, "n_layers": 2, "vocab_size": 1000, "max_seq_len": 4096,
    }  # fmt: skip
    rotary = {"rope": True, "attn_type": "grouped_query_attention", "kv_n_heads": 4, "sliding_window_size": 256}
    model = huggingface.from_mapping(
        {**config, "attn_config": rotary, "ffn_config": {"ffn_type": "mptglu", "ffn_hidden_size": 2816}}, "x"
    ).model
    assert (model.position_embedding_type, model.num_query_groups, model.window_size) == ("rope", 4, 256)
    assert (model.gated_linear_unit, model.ffn_hidden_size) == (True, 2816)
    plain = huggingface.from_mapping(config, "x").model
    assert (plain.num_query_groups, plain.position_embedding_type, plain.gated_linear_unit) == (
        16,
        "learned_absolute",
        False,
    )
    shared = huggingface.from_mapping({**config, "attn_config": {"attn_type": "multiquery_attention"}}, "x").model
    assert shared.num_query_groups == 1
    with pytest.raises(InputError, match="ffn_type"):
        huggingface.from_mapping({**config, "ffn_config": {"ffn_type": "mb_dmoe"}}, "x")


def test_a_model_of_a_hub(tmp_path):
    said = {"model": {"name": "hf_causal_lm", "pretrained_model_name_or_path": "meta-llama/Llama-3.1-8B"}}
    assert load(tmp_path, said).model.name == "llama3.1_8b"
    said["model"]["pretrained_model_name_or_path"] = "someone/else"
    with pytest.raises(InputError, match="--model"):
        load(tmp_path, said)
    assert load(tmp_path, said, model="qwen3_8b").model.name == "qwen3_8b"


def test_what_is_not_modelled_is_named(tmp_path):
    changes = {
        "fsdp_config.backward_prefetch": "BACKWARD_PRE",
        "model.attn_config.attn_impl": "torch",
        "algorithms.alibi": {},
    }
    known_of_nothing = {"model.attn_config.a_new_kernel": "fast", "a_new_switch": "on"}
    told = load(tmp_path, known_of_nothing).unmodelled
    assert told == ("attn_config.a_new_kernel=fast (unknown)", "a_new_switch=on (unknown)")
    loaded = load(tmp_path, changes)
    assert loaded.unmodelled == ("algorithms.alibi", "fsdp_config.backward_prefetch=BACKWARD_PRE (unknown)")
    assert loaded.recipe.attention_backend == "materialised"


#: Other trainings, and what does not fit: the changes, and what the refusal names.
REFUSED = {
    Unsupported: [
        ({"model.name": "hf_t5"}, "hf_t5"),
        ({"model.peft_config": {"peft_type": "LORA"}}, "adapters"),
        ({"model.block_overrides": {"order": []}}, "block_overrides"),
        ({"tp_config": {"strategy": "ffn"}}, "tp_config"),
        ({"fsdp_config.activation_cpu_offload": True}, "host"),
        ({"train_loader.name": "finetuning"}, "packing_ratio"),
    ],
    InputError: [
        ({"device_train_microbatch_size": "auto"}, "device_train_microbatch_size"),
        ({"device_train_microbatch_size": 0.5}, "micro_batch_size"),
        ({"variables": {}}, "max_seq_len"),
        ({"variables": {"max_seq_len": "${max_seq_len}"}}, "max_seq_len"),  # a circle
        ({"precision": "amp_int8"}, "precision.*amp_bf16"),
        ({"fsdp_config.sharding_strategy": "HYBRID_SHARD"}, "sharding_strategy"),
        ({"fsdp_config.mixed_precision": "FULL"}, "mixed_precision"),
        ({"optimizer.name": "shampoo"}, "optimizer"),
        ({"model.d_model": "wide"}, "d_model"),
    ],
}


def test_words_of_a_model_of_a_hub_are_read_or_told(tmp_path):
    said = {"name": "hf_causal_lm", "pretrained_model_name_or_path": "meta-llama/Llama-3.1-8B"}
    loaded = load(tmp_path, {"model": {**said, "use_flash_attention_2": True, "zqkvbx": 3}})
    assert loaded.recipe.attention_backend == "fa2"
    assert any("zqkvbx" in text for text in loaded.unmodelled)
    for wrong in ({"use_flash_attention_2": "zqkvbx"}, {"attn_implementation": "zqkvbx"}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            load(tmp_path, {"model": {**said, **wrong}})
