"""Kinds of change from one run to another: by them the error of a projected ratio is told apart. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["KINDS", "between"]

_FIELDS = {
    "precision": """precision fp8_recipe fp8_param_gather fp8_dot_product_attention first_last_layers_bf16
        activation_func_fp8_input_store""",
    "tp": "tp tp2 tensor_parallel_algorithm summa_panels fast_domain sequence_parallel tp_comm_overlap",
    "pp": "pp",
    "ep": "ep etp",
    "cp": "cp cp_comm_type",
    "schedule": """vpp pipeline_schedule pipeline_model_parallel_layout decoder_first_pipeline_num_layers
        decoder_last_pipeline_num_layers account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split
        allow_uneven_pipeline_split pipeline_remainder microbatch_group_size_per_vp_stage overlap_p2p_comm
        defer_embedding_wgrad_compute""",
    "recompute": """recompute_granularity recompute_method recompute_num_layers recompute_modules recompute_saved
        recompute_layer_ids cpu_offloading_num_layers offload_modules""",
    "batch": "micro_batch_size global_batch_size seq_length document_lengths",
    "dispatcher": """moe_token_dispatcher_type moe_flex_dispatcher_backend moe_deepep_num_sms moe_grouped_gemm
        moe_permute_fusion moe_router_fusion moe_router_dtype moe_router_force_load_balancing moe_shared_expert_overlap
        moe_expert_capacity_factor moe_pad_expert_input_to_capacity overlap_moe_expert_parallel_comm delay_wgrad_compute
        sync_free_stage moe_all_to_all_kernel moe_dispatch_scatter_adds mock_data""",
    "sharding": """data_parallel_sharding data_parallel_shard_size fsdp_reshard_after_forward overlap_grad_reduce
        overlap_param_gather grad_reduce_in_bf16 gradient_accumulation_fusion num_distributed_optimizer_instances""",
    "optimizer": """optimizer use_precision_aware_optimizer main_grads_dtype main_params_dtype exp_avg_dtype
        exp_avg_sq_dtype optimizer_cpu_offload optimizer_offload_fraction overlap_cpu_optimizer_d2h_h2d
        offload_optimizer_states muon_num_ns_steps muon_tp_mode lora""",
    "kernels": """apply_rope_fusion bias_activation_fusion cross_entropy_fusion attention_backend use_turbo_attention
        use_turbo_gemm use_turbo_rms_norm cuda_graph_scope torch_compile numa_binding manual_gc
        make_vocab_size_divisible_by check_for_nan_in_loss_and_grad create_attention_mask_in_dataloader
        device_memory_fraction""",
    "scale": "gpus",
    "GPU": "gpu",
    "model": "model num_layers",
    "software": "framework",
}
#: By kind the keys that belong to it: fields of a recipe, and ``gpu``, ``gpus``, ``model``, ``num_layers``, ``framework``.
KINDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {kind: frozenset(text.split()) for kind, text in _FIELDS.items()}
)
_KIND = {key: kind for kind, keys in KINDS.items() for key in keys}


def between(one: Mapping[str, object], other: Mapping[str, object]) -> frozenset[str]:
    """The kinds of :data:`KINDS` in which two runs differ; keys of no kind are not looked at, and values compare as text.

    A global batch that grows as the number of GPUs does is no change of the batch (weak scaling).
    """
    changed = {key for key in (*one, *other) if key in _KIND and str(one.get(key, "")) != str(other.get(key, ""))}
    if "gpus" in changed and _for_each_gpu(one) == _for_each_gpu(other):
        changed.discard("global_batch_size")
    return frozenset(_KIND[key] for key in changed)


def _for_each_gpu(run: Mapping[str, object]) -> float | None:
    batch, gpus = run.get("global_batch_size"), run.get("gpus")
    return float(str(batch)) / float(str(gpus)) if batch and gpus else None
