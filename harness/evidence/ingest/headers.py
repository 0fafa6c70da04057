"""Column names of results tables: which key each of the usual spellings means."""

from __future__ import annotations

from projector.intake.shell.unknown import word_set

TOP_KEYS = word_set(
    """
    id source source_kind licence gpu gpus nodes gpus_per_node cluster framework framework_version date model
    precision seq_length micro_batch_size global_batch_size tp pp vpp cp ep etp dp zero fsdp recompute schedule
    deepep sync_free_stage grouped_gemm flash_attn dist_opt group doubt note projected_by_source
    """
)
METRIC_KEYS = word_set(
    """
    iteration_ms step_seconds tokens_per_s_per_gpu tokens_per_s samples_per_s tflops_per_gpu memory_gb
    memory_kind rel_std samples status
    """
)
ARCH_KEYS = word_set(
    """
    layers hidden ffn heads kv_heads head_dim vocab experts topk moe_ffn dense_layers shared_experts
    shared_expert_ffn q_lora_rank kv_lora_rank qk_head_dim qk_rope_head_dim v_head_dim tied_embeddings
    mtp_layers moe_layer_freq
    """
)

_SPELLINGS: dict[str, str] = {
    "id": "name run run_id case case_id experiment",
    "gpu": "device accelerator gpu_type gpu_name gpu_model hardware hw",
    "gpus": "n_gpus num_gpus ngpus gpu_count num_devices devices world_size ws num_of_gpus",
    "nodes": "n_nodes num_nodes nnodes node_count",
    "gpus_per_node": "gpus_node num_gpus_per_node nproc_per_node",
    "framework": "stack software trainer backend",
    "framework_version": "version software_version container image release",
    "model": "model_name workload network",
    "precision": "dtype data_type compute_dtype datatype train_precision",
    "seq_length": "seq seq_len sequence_length seqlen sl max_seq_length",
    "micro_batch_size": "mbs micro_batch microbatch_size micro_bs",
    "global_batch_size": "gbs global_batch global_bs batch_size_global",
    "tp": "tensor_parallel tensor_parallel_size tensor_model_parallel_size tensor_model_parallel tp_size",
    "pp": "pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size pipeline_model_parallel pp_size",
    "vpp": "vp virtual_pipeline virtual_pipeline_model_parallel_size vpp_size interleave",
    "cp": "context_parallel context_parallel_size cp_size",
    "ep": "expert_parallel expert_parallel_size expert_model_parallel_size ep_size",
    "etp": "expert_tensor_parallel expert_tensor_parallel_size etp_size",
    "dp": "data_parallel data_parallel_size dp_size",
    "zero": "zero_stage data_parallel_sharding sharding sharding_strategy",
    "recompute": "activation_checkpointing checkpointing remat remat_policy recomputation",
    "schedule": "pipeline_schedule pp_schedule",
    "note": "notes comment comments remark remarks",
    "source": "url reference origin",
    "metrics.iteration_ms": "iteration_time_ms step_time_ms step_ms iter_ms iter_time_ms time_per_iteration_ms "
    "elapsed_time_per_iteration_ms ms_per_step ms_step ms_iter latency_ms",
    "metrics.step_seconds": "step_time step_time_s step_s iteration_s iteration_time_s iteration_time seconds_per_step "
    "s_per_iteration time_per_step s_step s_it s_iter step_time_seconds",
    "metrics.tokens_per_s_per_gpu": "tgs tokens_s_gpu tokens_sec_gpu tok_s_gpu tokens_per_second_per_gpu tps_per_gpu "
    "tokens_per_gpu_per_second tokens_per_sec_per_gpu tokens_s_device tokens_per_gpu_s tok_s_device",
    "metrics.tokens_per_s": "tokens_s tokens_sec tok_s tokens_per_second tokens_per_sec throughput_tokens_s",
    "metrics.samples_per_s": "samples_s samples_sec samples_per_second samples_per_sec",
    "metrics.tflops_per_gpu": "tflops tflop_s_gpu tflops_gpu tflop_s_device tflops_s_gpu tflop_per_s_per_gpu "
    "tflops_per_device model_tflops model_tflop_s_gpu",
    "metrics.memory_gb": "memory memory_gib peak_memory_gib peak_memory_gb max_memory_gb mem_gb mem_gib peak_mem_gb "
    "gpu_memory_gb max_memory_gib peak_mem_gib",
    "arch.layers": "num_layers n_layers n_layer num_hidden_layers",
    "arch.hidden": "hidden_size d_model h",
    "arch.ffn": "ffn_hidden_size intermediate_size d_ff",
    "arch.heads": "num_attention_heads n_heads n_head num_heads",
    "arch.kv_heads": "num_query_groups num_key_value_heads n_kv_heads kv_head",
    "arch.head_dim": "kv_channels",
    "arch.vocab": "vocab_size vocabulary padded_vocab_size",
    "arch.experts": "num_experts n_experts n_routed_experts num_local_experts",
    "arch.topk": "moe_router_topk num_experts_per_tok top_k",
    "arch.moe_ffn": "moe_ffn_hidden_size moe_intermediate_size",
    "arch.shared_expert_ffn": "moe_shared_expert_intermediate_size",
    "arch.qk_rope_head_dim": "qk_pos_emb_head_dim",
}
ALIASES: dict[str, str] = {alias: key for key, text in _SPELLINGS.items() for alias in text.split()}

#: What a table without a column of a run is told.
COLUMNS_OF_A_RUN = "columns of a run, such as model, gpu, gpus, tp, step_seconds"


def known_key(key: str) -> bool:
    """Whether a canonical key is one that some part of a run is read from."""
    return not key.startswith("other.")
