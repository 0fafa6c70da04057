"""nanotron's configurations: what is stated is read, what is no Llama or a slip of the pen is refused."""

from __future__ import annotations

import pytest

from projector.errors import InputError, Unsupported
from projector.intake import detect
from projector.workload.parameters import count
from projector.workload.validate import problems
from tests.workloads import written

FILE = {
    "general": {"project": "x", "seed": 1},
    "checkpoints": {"checkpoint_interval": 10},
    "model": {
        "dtype": "bfloat16",
        "make_vocab_size_divisible_by": 1,
        "init_method": {"std": 0.02},
        "model_config": {
            "is_llama_config": True,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "num_hidden_layers": 16,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "tie_word_embeddings": True,
        },
    },
    "optimizer": {"zero_stage": 1, "accumulate_grad_in_fp32": True, "optimizer_factory": {"name": "adamW"}},
    "parallelism": {
        "dp": 4,
        "tp": 2,
        "pp": 2,
        "pp_engine": "1f1b",
        "tp_mode": "REDUCE_SCATTER",
        "recompute_layer": False,
    },
    "tokens": {"sequence_length": 4096, "micro_batch_size": 2, "batch_accumulation_per_replica": 8, "train_steps": 100},
}


def load(folder, changes=(), **given):
    return detect.load(written(folder / "run.yaml", FILE, dict(changes)), **given)


def test_a_whole_configuration(tmp_path):
    loaded = load(tmp_path)
    workload, recipe = loaded.workload(), loaded.recipe
    layer = 2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048
    assert count(loaded.model).total == 16 * layer + 128256 * 2048 + 2048
    assert (loaded.framework, loaded.gpus) == ("unknown", 4 * 2 * 2)
    assert (recipe.tp, recipe.pp, recipe.cp, recipe.seq_length) == (2, 2, 1, 4096)
    assert (recipe.micro_batch_size, recipe.global_batch_size) == (2, 2 * 8 * 4)
    assert (recipe.sequence_parallel, recipe.pipeline_schedule) == (True, "1f1b")
    assert (recipe.data_parallel_sharding, recipe.main_grads_dtype, recipe.optimizer) == ("optim", "fp32", "adamw")
    assert recipe.recompute_granularity == "none"
    assert loaded.unmodelled == ()
    assert problems(workload) == ()


def test_what_is_left_out_is_as_nanotron_has_it(tmp_path):
    changes = {
        "parallelism.pp_engine": None,
        "parallelism.tp_mode": None,
        "model.model_config.num_key_value_heads": None,
    }
    loaded = load(tmp_path, changes)
    assert (loaded.recipe.pipeline_schedule, loaded.recipe.sequence_parallel) == ("gpipe", False)
    assert loaded.model.num_query_groups == 32


@pytest.mark.parametrize(("unit", "padded"), [(1, 49154), (64, 49280)])
def test_the_vocabulary_is_padded_to_what_the_ranks_share(tmp_path, unit, padded):
    changes = {"model.model_config.vocab_size": 49153, "model.make_vocab_size_divisible_by": unit}
    assert load(tmp_path, changes).workload().padded_vocab_size == padded


def test_ranks_of_a_sequence_are_gpus_of_their_own(tmp_path):
    loaded = load(tmp_path, {"parallelism.context_parallel_size": 2, "parallelism.recompute_layer": True})
    assert (loaded.gpus, loaded.recipe.cp, loaded.recipe.global_batch_size) == (32, 2, 64)
    assert (loaded.recipe.recompute_granularity, loaded.recipe.recompute_num_layers) == ("full", 1)


def test_without_sums_in_fp32_all_states_have_the_models_type(tmp_path):
    recipe = load(tmp_path, {"optimizer.accumulate_grad_in_fp32": False, "optimizer.zero_stage": 0}).recipe
    assert (recipe.main_params_dtype, recipe.exp_avg_dtype, recipe.grad_reduce_in_bf16) == ("bf16", "bf16", True)
    assert recipe.data_parallel_sharding == "no_shard"


def test_biases_are_those_of_a_qwen2_alone(tmp_path):
    said = {"model.model_config.attention_bias": True}
    assert load(tmp_path, said).model.add_qkv_bias is False
    assert load(tmp_path, {**said, "model.model_config.is_qwen2_config": True}).model.add_qkv_bias is True


def test_what_is_not_modelled_is_named(tmp_path):
    loaded = load(tmp_path, {"parallelism.tp_linear_async_communication": True, "model.model_config.own_switch": 3})
    assert loaded.unmodelled == ("tp_linear_async_communication=True", "own_switch=3 (unknown)")


#: Other trainings, and what does not fit: the changes, and what the refusal names.
REFUSED = {
    Unsupported: [
        ({"model.model_config": {"is_mamba_config": True, "d_model": 8}}, "is_mamba_config"),
        ({"model.model_config.moe_config": {"num_experts": 8}}, "moe_config"),
        ({"model.model_config.sliding_window_size": 128}, "sliding_window_size"),
        ({"parallelism.expert_parallel_size": 2}, "expert_parallel_size"),
    ],
    InputError: [
        ({"parallelism.recompute_layers": True}, "nearest: recompute_layer"),
        ({"parallelism.pp_engine": "zb"}, "pp_engine.*1f1b, afab"),
        ({"parallelism.tp_mode": "RING"}, "tp_mode"),
        ({"parallelism.dp": "many"}, "dp.*a whole number"),
        ({"optimizer.zero_stage": 3}, "zero_stage.*0, 1"),
        ({"tokens.micro_batch_size": None}, "micro_batch_size"),
        ({"tokens.batch_accumulation_per_replica": 0}, "global_batch_size"),
        ({"model.dtype": "int8"}, "dtype: found .int8"),
        ({"model.model_config.hidden_size": "wide"}, "hidden_size"),
    ],
}


def test_another_architecture_stands_in(tmp_path):
    loaded = load(tmp_path, model="llama3.1_8b")
    assert (loaded.model.name, loaded.recipe.tp) == ("llama3.1_8b", 2)


def test_a_section_that_nobody_knows_is_told(tmp_path):
    assert load(tmp_path, {"a_new_section": {"kernel": "fast"}, "s3_upload": {"bucket": "x"}}).unmodelled == (
        "a_new_section={'kernel': 'fast'} (unknown)",
    )
