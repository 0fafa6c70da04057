"""Primus experiments of torchtitan, MaxText and Megatron-Bridge, in the words of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from projector.errors import InputError, Unsupported
from projector.frameworks import resolve
from projector.intake import primus
from projector.intake.loaded import Loaded
from projector.workload import parameters
from projector.workload.recipe import Recipe
from projector.workload.validate import problems
from tests.projector.intake.primus_tree import checkout, experiment


def titan(root: Path, preset: str = "llama3.1_8B", env: dict[str, str] | None = None, **sections: Any) -> Loaded:
    return primus.load(experiment(checkout(root), preset, "torchtitan", **sections), env=env or {})


def maxtext(root: Path, preset: str = "llama3_8B", env: dict[str, str] | None = None, **keys: Any) -> Loaded:
    return primus.load(experiment(checkout(root), preset, "maxtext", **keys), env=env or {})


def bridge(root: Path, trainer: str = "post_trainer", **keys: Any) -> Loaded:
    config = "sft_trainer.yaml" if trainer == "post_trainer" else "pretrain_trainer.yaml"
    return primus.load(experiment(checkout(root), "qwen3_8b", "megatron_bridge", config, trainer, **keys), env={})


def recipe(loaded: Loaded, gpus: int = 8) -> Recipe:
    work = loaded.workload(gpus)
    assert problems(work) == ()
    return work.recipe


# torchtitan


@pytest.mark.parametrize("gpus", [8, 64])
def test_titans_batch_grows_with_the_ranks(tmp_path: Path, gpus: int) -> None:
    loaded = titan(tmp_path, training={"local_batch_size": 3}, parallelism={"tensor_parallel_degree": 2})
    assert (loaded.framework, loaded.model.name) == ("torchtitan", "llama3.1_8b")
    assert recipe(loaded, gpus).global_batch_size == 3 * gpus // 2
    stated = titan(tmp_path, training={"local_batch_size": 2, "global_batch_size": 128})
    assert recipe(stated, gpus).global_batch_size == 128


def test_titans_preset_and_what_it_leaves_open(tmp_path: Path) -> None:
    made = recipe(titan(tmp_path))
    assert (made.micro_batch_size, made.seq_length, made.recompute_granularity) == (8, 2048, "none")
    assert (made.data_parallel_sharding, made.torch_compile, made.mock_data) == ("optim_grads_params", True, True)


@pytest.mark.parametrize(
    ("section", "granularity", "extra"),
    [
        ({"mode": "full"}, "full", None),
        ({"mode": "selective", "selective_ac_option": "op"}, "selective", None),
        ({"mode": "selective", "selective_ac_option": "2"}, "full", tuple(range(1, 32, 2))),
        ({"mode": "selective", "selective_ac_option": 4}, "full", tuple(range(3, 32, 4))),
        ({"mode": "none"}, "none", None),
    ],
)
def test_titans_checkpointing(tmp_path: Path, section: dict[str, Any], granularity: str, extra: object) -> None:
    made = recipe(titan(tmp_path, activation_checkpoint=section))
    assert (made.recompute_granularity, made.recompute_layer_ids) == (granularity, extra)


def test_titans_pipelines(tmp_path: Path) -> None:
    degrees = {"pipeline_parallel_degree": 4, "pipeline_parallel_schedule": "Interleaved1F1B"}
    loaded = titan(tmp_path, training={"local_batch_size": 8}, parallelism=degrees)
    made = recipe(loaded)
    assert (made.pp, made.vpp, made.pipeline_schedule) == (4, 2, "interleaved")
    assert (made.micro_batch_size, made.global_batch_size) == (1, 16)
    longer = titan(tmp_path, parallelism={**degrees, "pipeline_parallel_layers_per_stage": 3})
    assert longer.workload(8).recipe.vpp == 3  # ceil((32 + 2) / 3) = 12 stages


def test_titans_float8_is_what_the_converters_say(tmp_path: Path) -> None:
    model = {"converters": ["primus_turbo", "quantize.linear.float8"]}
    quantize = {"linear": {"float8": {"enable_fsdp_float8_all_gather": True, "recipe_name": "rowwise"}}}
    made = recipe(titan(tmp_path, model=model, quantize=quantize, primus_turbo={"use_turbo_float8_linear": True}))
    assert (made.precision, made.fp8_recipe, made.fp8_param_gather) == ("fp8", "rowwise", True)
    assert recipe(titan(tmp_path, primus_turbo={"use_turbo_float8_linear": True})).precision == "bf16"
    assert recipe(titan(tmp_path, model={"converters": ["quantize.linear.mx"]})).precision == "mxfp8"


def test_titans_hybrid_sharding(tmp_path: Path) -> None:
    made = recipe(titan(tmp_path, parallelism={"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 4}))
    assert made.data_parallel_shard_size == 4
    left = titan(tmp_path, env={"NNODES": "2"}, parallelism={"data_parallel_replicate_degree": 2})
    assert recipe(left, 16).data_parallel_shard_size == 8
    plain = titan(tmp_path, parallelism={"data_parallel_replicate_degree": 8, "data_parallel_shard_degree": 1})
    assert recipe(plain).data_parallel_sharding == "no_shard"


def test_titans_experts_and_overrides_of_a_flavor(tmp_path: Path) -> None:
    loaded = titan(
        tmp_path, "deepseek", model={"n_layers": 5}, parallelism={"expert_parallel_degree": 8},
        debug={"moe_force_load_balance": True},
    )  # fmt: skip
    assert (loaded.model.num_layers, loaded.model.mtp_num_layers) == (5, 0)
    made = recipe(loaded)
    assert (made.ep, made.etp, made.moe_router_force_load_balancing) == (8, 1, True)


@pytest.mark.parametrize(
    "sections",
    [
        {"activation_checkpoint": {"mode": "some"}},
        {"parallelism": {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "Best"}},
        {"model": {"name": "llama9", "flavor": "8T"}},
        {"training": {"local_batch_size": "many"}},
        {"optimizer": {"name": "Sorcerer"}},
    ],
)
def test_what_titan_does_not_know_is_named(tmp_path: Path, sections: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        titan(tmp_path, **sections)


# MaxText


@pytest.mark.parametrize("gpus", [8, 32])
def test_maxtexts_batch_counts_devices(tmp_path: Path, gpus: int) -> None:
    loaded = maxtext(
        tmp_path, per_device_batch_size=4, max_target_length=8192, ici_tensor_parallelism=2, ici_fsdp_parallelism=4
    )
    made = recipe(loaded, gpus)
    assert (made.tp, made.micro_batch_size, made.global_batch_size, made.seq_length) == (2, 8, 4 * gpus, 8192)
    assert (loaded.framework, made.precision, made.main_params_dtype) == ("maxtext", "bf16", "bf16")


@pytest.mark.parametrize(
    ("axes", "sharding", "size"),
    [
        ({"ici_fsdp_parallelism": 8}, "optim_grads_params", 8),
        ({"ici_fsdp_parallelism": -1, "dcn_data_parallelism": 1, "dcn_fsdp_parallelism": -1}, "optim_grads_params", None),
        ({"ici_fsdp_parallelism": 1, "ici_data_parallelism": -1}, "no_shard", None),
        ({"ici_fsdp_parallelism": 2, "ici_data_parallelism": 4}, "optim_grads_params", 2),
    ],
)  # fmt: skip
def test_maxtexts_axes(tmp_path: Path, axes: dict[str, int], sharding: str, size: int | None) -> None:
    made = recipe(maxtext(tmp_path, **axes), 16)
    assert (made.data_parallel_sharding, made.data_parallel_shard_size) == (sharding, size)


def test_maxtexts_experts(tmp_path: Path) -> None:
    axes = {"ici_fsdp_parallelism": 1, "ici_expert_parallelism": -1}
    made = recipe(maxtext(tmp_path, "mixtral_8x7B", **axes, sparse_matmul=False, capacity_factor=1.25))
    assert (made.ep, made.moe_expert_capacity_factor, made.moe_pad_expert_input_to_capacity) == (8, 1.25, True)
    assert recipe(maxtext(tmp_path, "mixtral_8x7B", **axes)).moe_grouped_gemm == "fused"
    with pytest.raises(Unsupported, match="every token through every expert"):
        maxtext(tmp_path, "mixtral_8x7B", **axes, sparse_matmul=False, capacity_factor=-1.0)


@pytest.mark.parametrize(
    ("policy", "saved"),
    [
        ("full", None),
        ("minimal", ("qkv_proj", "out_proj", "mlpwi", "mlpwo")),
        ("minimal_flash", ("qkv_proj", "out_proj", "mlpwi", "mlpwo", "context")),
        ("save_dot_with_context_except_mlp", ("qkv_proj", "out_proj", "context")),
    ],
)
def test_maxtexts_policies(tmp_path: Path, policy: str, saved: object) -> None:
    made = recipe(maxtext(tmp_path, remat_policy=policy))
    assert (made.recompute_granularity, made.recompute_saved) == ("full", saved)


@pytest.mark.parametrize(
    ("word", "precision"), [("", "bf16"), ("fp8", "fp8"), ("nanoo_fp8", "fp8"), ("te_mxfp8", "mxfp8")]
)
def test_maxtexts_quantisation(tmp_path: Path, word: str, precision: str) -> None:
    assert recipe(maxtext(tmp_path, quantization=word)).precision == precision


def test_a_model_of_maxtexts_own_arguments(tmp_path: Path) -> None:
    model = maxtext(tmp_path, "own", num_experts=4, num_experts_per_tok=2, base_moe_mlp_dim=1024).model
    assert model.moe is not None
    assert (model.num_layers, model.hidden_size, model.kv_channels, model.vocab_size) == (12, 2048, 128, 32000)
    assert (model.moe.num_experts, model.moe.moe_ffn_hidden_size, sum(model.moe.moe_layer_freq)) == (4, 1024, 12)


def test_a_preset_that_repeats_maxtexts_defaults_changes_no_named_model(tmp_path: Path) -> None:
    """Presets of 2025 hold all of base.yml; what the experiment itself says of a named model counts."""
    root = checkout(tmp_path)
    preset = root / "primus/configs/models/maxtext/llama3_8B.yaml"
    preset.write_text(
        "model_name: llama3-8b\nbase_num_decoder_layers: 16\nbase_emb_dim: 2048\nnum_experts: 1\nvocab_size: 32_000\n"
        "logits_via_embedding: false\nbase_moe_mlp_dim: 7168\nnum_experts_per_tok: 1\nhead_dim: 128\n"
    )
    whole = primus.load(experiment(root, "llama3_8B", "maxtext"), env={}).model
    assert (whole.num_layers, whole.hidden_size, whole.vocab_size, whole.moe) == (32, 4096, 128256, None)
    cut = primus.load(experiment(root, "llama3_8B", "maxtext", base_num_decoder_layers=16), env={}).model
    assert (cut.num_layers, cut.hidden_size) == (16, 4096)


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"remat_policy": "guess"}, InputError),
        ({"remat_policy": "minimal_offloaded"}, Unsupported),
        ({"quantization": "int8"}, Unsupported),
        ({"ici_fsdp_parallelism": 3}, InputError),
        ({"ici_fsdp_parallelism": -1, "ici_data_parallelism": -1}, InputError),
        ({"per_device_batch_size": 0.5}, InputError),
        ({"model_name": "nobody-7b"}, InputError),
    ],
)
def test_what_maxtext_cannot_do_here_is_named(tmp_path: Path, keys: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        maxtext(tmp_path, **keys)


def test_maxtexts_pool_is_read_from_the_launch(tmp_path: Path) -> None:
    beside = {"env": {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".97"}}
    assert recipe(maxtext(tmp_path, beside=beside)).device_memory_fraction == 0.97


# Megatron-Bridge


def test_bridges_recipe_speaks_where_the_experiment_is_silent(tmp_path: Path) -> None:
    made = recipe(bridge(tmp_path, peft="none"))
    assert (made.tp, made.micro_batch_size, made.global_batch_size, made.seq_length) == (4, 1, 128, 2048)
    assert (made.lora, made.data_parallel_sharding, made.overlap_grad_reduce) == (None, "optim", False)
    adapted = recipe(bridge(tmp_path))
    assert adapted.lora is not None
    assert (adapted.tp, adapted.lora.dim, len(adapted.lora.targets)) == (1, 32, 4)
    assert recipe(bridge(tmp_path, packed_sequence=True)).global_batch_size == 8


def test_bridges_experiment_wins_over_its_recipe(tmp_path: Path) -> None:
    keys = {"tensor_model_parallel_size": 2, "global_batch_size": 32, "seq_length": 4096, "peft": {"dim": 4}}
    made = recipe(bridge(tmp_path, **keys))
    assert made.lora is not None
    assert (made.tp, made.global_batch_size, made.seq_length, made.lora.dim) == (2, 32, 4096, 4)


def test_bridges_pretraining(tmp_path: Path) -> None:
    made = recipe(bridge(tmp_path, "pre_trainer", flavor="qwen3_8b_pretrain_config"))
    assert (made.tp, made.micro_batch_size, made.global_batch_size, made.seq_length) == (4, 2, 32, 4096)
    assert (made.overlap_grad_reduce, made.manual_gc, made.recompute_granularity) == (True, True, "none")


def test_bridge_leaves_nothing_of_a_step_open(tmp_path: Path) -> None:
    assert not [text for text in resolve(bridge(tmp_path).workload(8), "amd").assumed if text.startswith("recompute")]


def test_sizes_that_a_recipe_sets_whatever_it_is_told_are_said(tmp_path: Path) -> None:
    keys = {"flavor": "llama31_70b_finetune_config", "hf_path": "meta-llama/Llama-3.1-70B", "peft": "none"}
    loaded = bridge(tmp_path, **keys, tensor_model_parallel_size=8, pipeline_model_parallel_size=1)
    assert loaded.model.name == "llama3.1_70b"
    assert any("pipeline_model_parallel_size=1" in text and "sets 4 itself" in text for text in loaded.assumed)
    assert not any("tensor_model_parallel_size" in text for text in loaded.assumed)


def test_what_an_experiment_sets_and_nobody_reads_is_told(tmp_path: Path) -> None:
    made = titan(tmp_path, primus_turbo={"use_classic_attention": True}, metrics={"log_freq": 1})
    assert made.unmodelled == ("primus_turbo.use_classic_attention=True (unknown)",)
    assert "metrics.log_freq" in made.ignored
    jax = maxtext(tmp_path / "jax", use_ring_of_experts=True, enable_checkpointing=False)
    assert jax.unmodelled == ("use_ring_of_experts=True",)
    assert "enable_checkpointing" in jax.ignored


def test_what_an_experiment_of_bridge_sets_and_no_model_holds_is_told(tmp_path: Path) -> None:
    loaded = bridge(tmp_path, no_fp8_weight_transpose_cache=True, dataset_name="squad", finetune_lr=1e-4)
    assert loaded.unmodelled == ("no_fp8_weight_transpose_cache=True",)
    assert {"dataset_name", "finetune_lr"} <= set(loaded.ignored)


def test_bridge_trains_mamba_and_hybrid_stacks(tmp_path: Path) -> None:
    """Sizes are the provider's: the names say how many parameters, embedding and output apart (50288 rows)."""
    for flavor, letters, billions in (
        ("mamba2_370m_finetune_config", "M" * 48, 0.368 + 50288 * 1024 / 1e9),
        ("mamba2_hybrid_8b_pretrain_config", "M-M-M--M-M*-M-M-M-M--M*-M-M-M-M-M*--M-M-M-M-M*-M--M-M-M-", 8.66),
        ("zebra_llama_1b_finetune_config", "+-M-M-M-" * 4, 1.55),
    ):
        loaded = bridge(tmp_path, flavor=flavor, peft="none", tensor_model_parallel_size=None)
        assert (loaded.model.hybrid_layer_pattern, loaded.model.unsupported) == (letters, ())
        assert parameters.count(loaded.model).total / 1e9 == pytest.approx(billions, rel=0.02)
        assert loaded.recipe is not None
        assert loaded.recipe.tp == (8 if "8b" in flavor else 1)


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"flavor": "nemotronh_8b_finetune_config"}, Unsupported),
        ({"flavor": "qwen3_8b"}, InputError),
        ({"peft": "dora"}, Unsupported),
        ({"peft": "glue"}, InputError),
        ({"precision_config": "decimal"}, InputError),
    ],
)
def test_what_bridge_cannot_do_here_is_named(tmp_path: Path, keys: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        bridge(tmp_path, **keys)


# without presets


@pytest.mark.parametrize(
    ("framework", "preset", "precision"),
    [
        ("torchtitan", "llama3.1_8B", "bf16"),
        ("torchtitan", "llama3.1_8B-fp8", "fp8"),
        ("maxtext", "llama3_8B", "bf16"),
        ("megatron_bridge", "llama3_8b", "bf16"),
    ],
)
def test_a_known_model_needs_no_presets(tmp_path: Path, framework: str, preset: str, precision: str) -> None:
    loaded = primus.load(experiment(tmp_path, preset, framework), env={})
    assert loaded.model.num_layers == 32
    assert recipe(loaded).precision == precision
    assert "Primus presets: this project's defaults" in loaded.assumed


@pytest.mark.parametrize("framework", ["torchtitan", "maxtext", "megatron_bridge", "megatron"])
def test_an_unknown_model_needs_them(tmp_path: Path, framework: str) -> None:
    with pytest.raises(InputError, match="configs folder of Primus"):
        primus.load(experiment(tmp_path, "nobody_7B", framework), env={})
