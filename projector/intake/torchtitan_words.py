"""Sections and settings of torchtitan's job configuration: what is read, and what changes neither seconds nor bytes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from projector.intake import known_settings
from projector.intake.known_settings import Unread

#: Sections whose settings may change a step; every other one (metrics, checkpoint, lr_scheduler, …) does not.
SECTIONS = (
    *("model", "training", "parallelism", "activation_checkpoint", "compile", "optimizer", "float8", "mx", "quantize"),
    *("debug", "experimental", "memory_estimation", "fault_tolerance", "primus_turbo"),
)
_PARALLELISM = (
    *("tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree", "expert_parallel_degree"),
    *("expert_tensor_parallel_degree", "data_parallel_replicate_degree", "data_parallel_shard_degree"),
    *("fsdp_reshard_after_forward", "pipeline_parallel_schedule", "pipeline_parallel_microbatch_size"),
    *("pipeline_parallel_microbatches", "pipeline_parallel_layers_per_stage", "enable_async_tensor_parallel"),
    *("pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers"),
    *("pipeline_parallel_split_points", "module_fqns_per_model_part", "expert_parallel_comm_backend"),
)
_READ: Mapping[str, tuple[str, ...]] = {
    "model": ("name", "flavor", "converters", "hf_assets_path", "n_layers", "dim", "n_heads", "n_kv_heads", "vocab_size",
              "head_dim", "hidden_dim", "inter_dim"),
    "training": ("local_batch_size", "global_batch_size", "seq_len", "mock_data", "dtype", "mixed_precision_param",
                 "mixed_precision_reduce", "enable_cpu_offload"),
    "parallelism": _PARALLELISM,
    "activation_checkpoint": ("mode", "selective_ac_option"),
    "compile": ("enable", "components"),
    "optimizer": ("name",),
    "float8": ("enable_float8_linear", "recipe_name", "enable_fsdp_float8_all_gather"),
    "quantize": ("linear.float8.recipe_name", "linear.float8.enable_fsdp_float8_all_gather", "grouped_mm.float8.fqns",
                 "grouped_mm.mx.fqns"),
    "debug": ("moe_force_load_balance",),
    "primus_turbo": ("enable_primus_turbo", "use_turbo_attention", "enable_attention_float8", "use_turbo_grouped_mm",
                     "use_moe_fp8"),
}  # fmt: skip
#: Dotted names that the reader looks at, under today's names.
READ = frozenset(f"{section}.{name}" for section, names in _READ.items() for name in names)
NEUTRAL: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "model": ("norm_type", "tokenizer_path", "print_after_conversion", "converters_config"),
        "training": ("steps", "max_norm", "dataset", "dataset_path", "seed", "gc_freq", "gc_debug", "deterministic",
                     "warmup_steps", "data_parallel_type", "enable_loss_parallel", "max_steps", "dataset_files",
                     "dataset_split", "enable_fsdp_symm_mem", "num_workers", "tokenizer_path"),
        "parallelism": ("disable_loss_parallel", "context_parallel_rotate_method", "enable_compiled_autograd",
                        "pipeline_parallel_schedule_csv"),
        "activation_checkpoint": ("per_op_sac_force_recompute_mm_shapes_by_fqns", "early_stop", "debug",
                                  "preserve_rng_state", "determinism_check", "visualize_memory_budget_pareto"),
        "optimizer": ("lr", "eps", "betas", "beta1", "beta2", "weight_decay", "implementation", "fused",
                      "early_step_in_backward"),
        "float8": ("precompute_float8_dynamic_scale_for_fsdp", "filter_fqns", "force_recompute_fp8_weight_in_bwd",
                   "emulate"),
        "mx": ("filter_fqns", "recipe_name"),
        "quantize": ("linear.float8.filter_fqns", "linear.float8.precompute_float8_dynamic_scale_for_fsdp",
                     "linear.float8.emulate", "linear.mx.filter_fqns", "linear.mx.recipe_name"),
        "debug": ("seed", "deterministic", "print_config", "save_config_file"),
        "experimental": ("custom_import", "custom_args_module", "custom_model_path"),
        "memory_estimation": ("enabled", "disable_fake_mode"),
        "fault_tolerance": ("process_group", "process_group_timeout_ms", "replica_id", "group_size", "min_replica_size"),
    }
)  # fmt: skip


def is_neutral(key: str) -> bool:
    section, _, name = key.partition(".")
    return section not in SECTIONS or name in NEUTRAL.get(section, ())


def left(settings: Mapping[str, object], where: str) -> Unread:
    """Of ``settings`` by dotted name those that nobody reads, by what they may change."""
    unread = {key: value for key, value in settings.items() if key not in READ}
    neutral = tuple(sorted(filter(is_neutral, unread)))
    told = known_settings.sort({k: v for k, v in unread.items() if k not in neutral}, frozenset(), where, written=False)
    return Unread(neutral=(*neutral, *told.neutral), unmodelled=told.unmodelled)
