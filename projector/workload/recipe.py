"""How a model is trained: parallelism, batch, precision, recompute, optimizer and feature switches.

Names are Megatron-LM's arguments (short forms for the parallel sizes, as in the literature). ``None`` always means
*not stated*: :func:`projector.frameworks.resolve` fills it with the default of the framework and says so.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LoRA", "Recipe"]


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Low-rank adapters on frozen weights. ``targets``: Megatron linear names (``linear_qkv``, ``linear_proj``, …)."""

    dim: int
    targets: tuple[str, ...] = ("linear_qkv", "linear_proj")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training configuration. Sizes of parallel groups default to 1; switches default to ``None`` (not stated).

    ``precision`` is the compute type of the linear layers: ``bf16``, ``fp16``, ``fp32``, ``fp8``, ``mxfp8``, ``mxfp4``
    or ``nvfp4``; ``fp8_recipe`` its scaling (``delayed``, ``tensorwise``, ``rowwise``, ``blockwise``, ``mxfp8``).
    ``data_parallel_sharding``: ``no_shard`` (plain DDP), ``optim`` (ZeRO-1, Megatron's distributed optimizer),
    ``optim_grads`` (ZeRO-2), ``optim_grads_params`` (ZeRO-3, FSDP). ``data_parallel_shard_size``: ranks that share one
    copy (HSDP; None: all data-parallel ranks). ``fsdp_reshard_after_forward``: weights are given back between forward and
    backward (None: torchtitan's rule, yes without a pipeline). ``moe_deepep_num_sms``: compute units of DeepEP's dispatch
    and combine (None: 20, 64 on AMD). ``allow_uneven_pipeline_split``: stages may differ by one layer when the
    layers do not divide (torchtitan does so; Megatron-LM refuses); ``pipeline_remainder``: how, ``weighted`` (embedding
    and loss count as a layer each) or ``first`` (one more on each of the first stages). ``moe_all_to_all_kernel``:
    ``collective`` (NCCL, RCCL) or ``one_shot`` (a compiler's own kernel that copies over peer mappings);
    ``moe_dispatch_scatter_adds``: scatter-additions over the receive buffer in the backward of a compiled dispatch.
    ``device_memory_fraction``: share of the device that the framework takes as one pool at start
    (XLA_PYTHON_CLIENT_MEM_FRACTION).
    ``use_turbo_attention``, ``use_turbo_gemm``, ``use_turbo_rms_norm``: kernels of Primus-Turbo in place of Transformer
    Engine's (its grouped products are ``moe_grouped_gemm: fused``).
    ``optimizer_offload_fraction``: share of the optimizer that ``optimizer_cpu_offload`` moves to the host (None: all of
    it); ``overlap_cpu_optimizer_d2h_h2d``: its copies run beside its arithmetic; ``offload_optimizer_states``: only its
    states wait on the host, the device updates. ``offload_modules``: modules whose saved inputs go to the host until the
    backward (Megatron-LM's ``fine_grained_activation_offloading``). ``muon_num_ns_steps``: Newton-Schulz iterations (None:
    5); ``muon_tp_mode``: ``blockwise``, ``duplicated`` or ``distributed`` over tensor parallelism.
    """

    micro_batch_size: int
    global_batch_size: int
    seq_length: int
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    precision: str = "bf16"
    fp8_recipe: str | None = None
    fp8_param_gather: bool | None = None
    fp8_dot_product_attention: bool | None = None
    first_last_layers_bf16: bool | None = None
    # parallelism details
    sequence_parallel: bool | None = None
    cp_comm_type: str | None = None
    tp_comm_overlap: bool | None = None
    pipeline_schedule: str | None = None
    pipeline_model_parallel_layout: str | None = None
    decoder_first_pipeline_num_layers: int | None = None
    decoder_last_pipeline_num_layers: int | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    allow_uneven_pipeline_split: bool | None = None
    pipeline_remainder: str | None = None
    microbatch_group_size_per_vp_stage: int | None = None
    overlap_p2p_comm: bool | None = None
    defer_embedding_wgrad_compute: bool | None = None
    # data parallelism and optimizer
    data_parallel_sharding: str | None = None
    data_parallel_shard_size: int | None = None
    fsdp_reshard_after_forward: bool | None = None
    overlap_grad_reduce: bool | None = None
    overlap_param_gather: bool | None = None
    grad_reduce_in_bf16: bool | None = None
    gradient_accumulation_fusion: bool | None = None
    num_distributed_optimizer_instances: int | None = None
    optimizer: str | None = None
    use_precision_aware_optimizer: bool | None = None
    main_grads_dtype: str | None = None
    main_params_dtype: str | None = None
    exp_avg_dtype: str | None = None
    exp_avg_sq_dtype: str | None = None
    optimizer_cpu_offload: bool | None = None
    optimizer_offload_fraction: float | None = None
    overlap_cpu_optimizer_d2h_h2d: bool | None = None
    offload_optimizer_states: bool | None = None
    muon_num_ns_steps: int | None = None
    muon_tp_mode: str | None = None
    lora: LoRA | None = None
    # recompute
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    recompute_modules: tuple[str, ...] | None = None
    recompute_saved: tuple[str, ...] | None = None
    recompute_layer_ids: tuple[int, ...] | None = None
    cpu_offloading_num_layers: int | None = None
    offload_modules: tuple[str, ...] | None = None
    # mixture of experts
    moe_token_dispatcher_type: str | None = None
    moe_flex_dispatcher_backend: str | None = None
    moe_deepep_num_sms: int | None = None
    moe_grouped_gemm: str | None = None
    moe_permute_fusion: bool | None = None
    moe_router_fusion: bool | None = None
    moe_router_dtype: str | None = None
    moe_router_force_load_balancing: bool | None = None
    mock_data: bool | None = None
    moe_shared_expert_overlap: bool | None = None
    moe_expert_capacity_factor: float | None = None
    moe_pad_expert_input_to_capacity: bool | None = None
    overlap_moe_expert_parallel_comm: bool | None = None
    delay_wgrad_compute: bool | None = None
    sync_free_stage: int | None = None
    moe_all_to_all_kernel: str | None = None
    moe_dispatch_scatter_adds: int | None = None
    # fusions, loss, host
    apply_rope_fusion: bool | None = None
    bias_activation_fusion: bool | None = None
    activation_func_fp8_input_store: bool | None = None
    cross_entropy_fusion: str | None = None
    attention_backend: str | None = None
    use_turbo_attention: bool | None = None
    use_turbo_gemm: bool | None = None
    use_turbo_rms_norm: bool | None = None
    cuda_graph_scope: tuple[str, ...] | None = None
    torch_compile: bool | None = None
    numa_binding: bool | None = None
    manual_gc: bool | None = None
    make_vocab_size_divisible_by: int | None = None
    check_for_nan_in_loss_and_grad: bool | None = None
    create_attention_mask_in_dataloader: bool | None = None
    device_memory_fraction: float | None = None
