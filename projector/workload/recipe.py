"""Describes how a model is trained: parallelism, batch, precision, recompute, optimizer and feature switches.

Every field declares itself here and nowhere else (:mod:`projector.workload.field_facts`): what it means, may hold and may
affect, and what frameworks call it. Names are Megatron-LM's arguments (short forms for the parallel sizes, as in the
literature). ``None`` always means *not stated*: :func:`projector.frameworks.resolve` fills it with the default of the
framework and says so.

Sources of the names: Megatron-LM megatron/training/arguments.py (``forks``: its forks and other years, as in
:mod:`projector.intake.megatron_forks`; ``own``: a word of this project that may stand among them); Primus-Turbo switches of
AMD-AGI/Primus@fd1eeabb primus/configs/modules/megatron/{primus_turbo,zero_bubble,primus_pipeline}.yaml; torchtitan,
MaxText, NeMo and DeepSpeed: those of their loaders; XLA: openxla/xla xla/xla.proto ``DebugOptions``.
"""

from __future__ import annotations

from dataclasses import field
from math import lcm

from projector.dataclass import dataclass
from projector.workload import fast_domain as domains
from projector.workload.field_facts import SAME, about, recipe_field
from projector.workload.lora import LoRA
from projector.workload.optimizers import OPTIMIZERS

_DTYPES = ("fp32", "fp16", "bf16", "fp8")
_OFFLOADABLE = (
    *("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"),
    "fused_group_mlp",
)
_RECOMPUTABLE = (
    *("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "attn", "mhc"),
    "op_sac",
)
_GRAPHS = ("full", "full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")
_ALL = "layer schedule step memory"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training configuration. Sizes of parallel groups default to 1; switches default to ``None`` (not stated)."""

    micro_batch_size: int = field(
        metadata=about(
            "samples of one forward pass on a data-parallel rank", _ALL, "batch", unit="samples", essential=True,
            also="mbs", megatron=SAME, deepspeed="train_micro_batch_size_per_gpu", forks="batch_size", nemo=SAME,
        )
    )  # fmt: skip
    global_batch_size: int = field(
        metadata=about(
            "samples of one optimizer step over all ranks", "schedule step memory", "batch", unit="samples",
            most=100_000_000, essential=True, also="gbs", megatron=SAME, deepspeed="train_batch_size", nemo=SAME,
        )
    )  # fmt: skip
    seq_length: int = field(
        metadata=about(
            "tokens of a sample", "layer step memory", "batch", unit="tokens", most=100_000_000, essential=True,
            also="seq", megatron=SAME, forks="sequence_length", nemo="encoder_seq_length",
            torchtitan="training.seq_len", maxtext="max_target_length",
        )
    )  # fmt: skip
    # fmt: off
    document_lengths: tuple[int, ...] | None = recipe_field(
        "tokens of every document packed into a sample; attention stays inside each", "layer step memory", "batch",
        unit="tokens", most=100_000_000)
    encoder_seq_length: int | None = recipe_field(
        "tokens of a sample in an encoder before the decoder (left out: as many as seq_length)", "layer step memory",
        "batch", unit="tokens", most=100_000_000, derived_from="decoder_seq_length")
    images_per_sample: int | None = recipe_field(
        "images (or tiles) of a sample before a language model that sees (left out: one; 0: its vision tower is not there)",
        "layer step memory", "batch", unit="images", least=0)
    freeze_language_model: bool | None = recipe_field(
        "the language model behind a vision tower is not trained", _ALL, "model")
    freeze_vision_model: bool | None = recipe_field(
        "the vision tower is not trained; its projector is", _ALL, "model")
    recompute_vision: bool | None = recipe_field(
        "recompute reaches the layers of the vision tower, too", "layer step memory", "recompute")
    tp: int = recipe_field(
        "tensor-parallel ranks", _ALL, "tp", default=1, unit="ranks", essential=True,
        megatron="tensor_model_parallel_size", nemo="tensor_model_parallel_size", forks="model_parallel_size",
        torchtitan="parallelism.tensor_parallel_degree")
    tp2: int = recipe_field(
        "ranks of the second dimension of SUMMA's grid: they split the sequence and the weights' other side", _ALL,
        "tp", default=1, unit="ranks")
    tensor_parallel_algorithm: str | None = recipe_field(
        "how ranks share a product: 1d, summa (a grid of tp x tp2, nothing replicated), 2d_sequence (tp x cp, keys and "
        "values gathered)", _ALL, "tp", choices=("1d", "summa", "2d_sequence"))
    summa_panels: int | None = recipe_field(
        "panels in which SUMMA broadcasts (left out: as many as tp and tp2 both divide)", "layer step memory", "tp",
        unit="panels")
    fast_domain: str | None = recipe_field(
        "ranks of each group that share a fast domain, as tp4.cp2.dp8 (left out: domains are filled in the order tp, cp, "
        "dp, pp)", "step", "tp")
    pp: int = recipe_field(
        "pipeline-parallel ranks", _ALL, "pp", default=1, unit="ranks", essential=True,
        megatron="pipeline_model_parallel_size", nemo="pipeline_model_parallel_size", forks="pipe_parallel_size",
        torchtitan="parallelism.pipeline_parallel_degree")
    vpp: int = recipe_field(
        "model chunks on a pipeline rank", "schedule memory", "schedule", default=1, unit="chunks", essential=True,
        megatron="virtual_pipeline_model_parallel_size num_virtual_stages_per_pipeline_rank",
        nemo="virtual_pipeline_model_parallel_size", derived_from="num_layers_per_virtual_pipeline_stage")
    cp: int = recipe_field(
        "ranks that share one sequence (context parallelism)", _ALL, "cp", default=1, unit="ranks", essential=True,
        megatron="context_parallel_size", nemo="context_parallel_size", forks="ring_attention_size",
        torchtitan="parallelism.context_parallel_degree")
    ep: int = recipe_field(
        "ranks that share the experts of a layer", "layer step memory", "ep", default=1, unit="ranks", essential=True,
        also="target_ep_size", megatron="expert_model_parallel_size", nemo="expert_model_parallel_size",
        forks="moe_expert_parallel_size", torchtitan="parallelism.expert_parallel_degree")
    etp: int = recipe_field(
        "tensor-parallel ranks inside an expert", "layer step memory", "ep", default=1, unit="ranks", essential=True,
        megatron="expert_tensor_parallel_size", torchtitan="parallelism.expert_tensor_parallel_degree")
    precision: str = recipe_field(
        "compute type of the linear layers", "layer step memory", "precision", default="bf16", essential=True,
        choices=("bf16", "fp16", "fp32", "fp8", "mxfp8", "mxfp4", "nvfp4"), derived_from="bf16 fp16 fp8 fp4")
    fp8_recipe: str | None = recipe_field(
        "how 8-bit operands are scaled", "layer step memory", "precision", derived_from="fp8_recipe",
        choices=("delayed", "tensorwise", "rowwise", "blockwise", "mxfp8", "mxfp4", "nvfp4"))
    fp8_param_gather: bool | None = recipe_field(
        "parameters are kept and gathered in 8 bits", "layer step memory", "precision",
        megatron="fp8_param_gather fp8_param")
    fp8_dot_product_attention: bool | None = recipe_field(
        "attention runs in 8 bits too", "layer memory", "precision", megatron=SAME)
    first_last_layers_bf16: bool | None = recipe_field(
        "the first and the last layers stay in bf16", "layer step memory", "precision", megatron=SAME)
    num_layers_at_start_in_bf16: int = recipe_field(
        "first layers of them", "layer step memory", "precision", default=1, unit="layers", least=0, megatron=SAME)
    num_layers_at_end_in_bf16: int = recipe_field(
        "last layers of them", "layer step memory", "precision", default=1, unit="layers", least=0, megatron=SAME)
    # parallelism details
    sequence_parallel: bool | None = recipe_field(
        "norms and residuals are split over the tensor-parallel ranks", "layer step memory", "tp", essential=True,
        megatron=SAME, nemo=SAME)
    cp_comm_type: str | None = recipe_field(
        "how context-parallel ranks exchange keys and values", "layer memory", "cp", derived_from="cp_comm_type",
        choices=("p2p", "a2a", "allgather", "a2a+p2p"))
    dynamic_context_parallel: bool | None = recipe_field(
        "each packed document runs on the smallest power of two of context-parallel ranks that holds it", "layer memory",
        "cp", megatron="dynamic_context_parallel hybrid_context_parallel")
    tp_comm_overlap: bool | None = recipe_field(
        "tensor-parallel communication runs behind the products (userbuffers, async-TP)", "layer step memory", "tp",
        megatron=SAME, nemo="ub_tp_comm_overlap", torchtitan="parallelism.enable_async_tensor_parallel")
    pipeline_schedule: str | None = recipe_field(
        "order of forwards and backwards; its words are the schedules that there are", "schedule step memory",
        "schedule", own=SAME, derived_from="pp_algorithm patch_zero_bubble")
    pipeline_model_parallel_layout: str | None = recipe_field(
        "what stands on each virtual stage, as Megatron-LM writes it", "schedule memory", "schedule",
        derived_from="pipeline_model_parallel_layout")
    decoder_first_pipeline_num_layers: int | None = recipe_field(
        "layers of the first stage", "schedule memory", "schedule", unit="layers",
        megatron="decoder_first_pipeline_num_layers num_layers_in_first_pipeline_stage",
        nemo="num_layers_in_first_pipeline_stage")
    decoder_last_pipeline_num_layers: int | None = recipe_field(
        "layers of the last stage", "schedule memory", "schedule", unit="layers",
        megatron="decoder_last_pipeline_num_layers num_layers_in_last_pipeline_stage",
        nemo="num_layers_in_last_pipeline_stage")
    account_for_embedding_in_pipeline_split: bool = recipe_field(
        "the embedding counts as a layer", "schedule memory", "schedule", default=False, megatron=SAME)
    account_for_loss_in_pipeline_split: bool = recipe_field(
        "the loss counts as a layer", "schedule memory", "schedule", default=False, megatron=SAME)
    allow_uneven_pipeline_split: bool | None = recipe_field(
        "stages may differ by one layer where the layers do not divide (torchtitan does so; Megatron-LM refuses)",
        "schedule memory", "schedule")
    pipeline_remainder: str | None = recipe_field(
        "where layers that do not divide stand: the first stages, or weighted with embedding and loss as a layer each",
        "schedule memory", "schedule", choices=("weighted", "first"))
    microbatch_group_size_per_vp_stage: int | None = recipe_field(
        "micro-batches that pass one chunk before the next", "schedule memory", "schedule", unit="micro-batches",
        megatron=SAME)
    overlap_p2p_comm: bool | None = recipe_field(
        "messages between stages run beside compute", "step", "schedule", nemo=SAME,
        megatron="overlap_p2p_comm overlap_p2p_communication")
    defer_embedding_wgrad_compute: bool | None = recipe_field(
        "weight gradients of the output layer wait for the flush", "step", "schedule", megatron=SAME)
    # data parallelism and optimizer
    data_parallel_sharding: str | None = recipe_field(
        "what data-parallel ranks share out: nothing (DDP), ZeRO-1 (distributed optimizer), ZeRO-2, ZeRO-3 (FSDP)",
        "layer step memory", "sharding", essential=True,
        choices=("no_shard", "optim", "optim_grads", "optim_grads_params"), own=SAME,
        derived_from="use_distributed_optimizer data_parallel_sharding_strategy use_torch_fsdp2 use_megatron_fsdp")
    data_parallel_shard_size: int | None = recipe_field(
        "ranks that share one copy (HSDP; left out: all data-parallel ranks)", "layer step memory", "sharding",
        unit="ranks")
    fsdp_reshard_after_forward: bool | None = recipe_field(
        "sharded weights are given back between forward and backward; left out: yes without a pipeline",
        "layer step memory", "sharding")
    defer_fsdp_grad_sync: bool | None = recipe_field(
        "gradients of all micro-batches stay whole and are reduced once (PyTorch no_sync)", "layer step memory", "sharding")
    xla_gpu_all_gather_combine_threshold_bytes: int | None = recipe_field(
        "XLA combines gathers of a layer's weights up to so many bytes", "step", "sharding", unit="B", least=0,
        most=2**40, xla=SAME)
    xla_gpu_enable_pipelined_all_gather: bool | None = recipe_field(
        "XLA gathers a layer's weights an iteration ahead, where it also unrolls the loop", "step", "sharding", xla=SAME)
    xla_gpu_enable_while_loop_double_buffering: bool | None = recipe_field(
        "XLA unrolls the loop over layers by two", "step", "sharding", xla=SAME)
    overlap_grad_reduce: bool | None = recipe_field(
        "gradients are reduced beside the backward", "step", "sharding", megatron=SAME)
    overlap_param_gather: bool | None = recipe_field(
        "parameters are gathered beside the forward", "step", "sharding", megatron=SAME)
    ddp_bucket_size: int | None = recipe_field(
        "parameters of a bucket that is reduced and gathered by itself (left out: the framework's)", "step", "sharding",
        unit="parameters", most=1_000_000_000_000, megatron=SAME)
    grad_reduce_in_bf16: bool | None = recipe_field(
        "gradients travel in 16 bits", "layer step memory", "sharding", megatron=SAME, derived_from="grad_reduce_in_fp32")
    gradient_accumulation_fusion: bool | None = recipe_field(
        "weight gradients are added by the product itself", "layer memory", "sharding", megatron=SAME, nemo=SAME)
    num_distributed_optimizer_instances: int | None = recipe_field(
        "copies of the sharded optimizer state", "step memory", "sharding", megatron=SAME)
    optimizer: str | None = recipe_field(
        "update rule: states kept, bytes read and written by the step", "step memory", "optimizer", choices=OPTIMIZERS,
        megatron=SAME)
    use_precision_aware_optimizer: bool | None = recipe_field(
        "gradients, parameters and moments have the four types below", "step memory", "optimizer", megatron=SAME)
    main_grads_dtype: str | None = recipe_field(
        "type of the gradient buffer", "step memory", "optimizer", choices=("fp32", "bf16", "fp16"), megatron=SAME)
    main_params_dtype: str | None = recipe_field(
        "type of the master weights", "step memory", "optimizer", choices=_DTYPES, megatron=SAME)
    exp_avg_dtype: str | None = recipe_field(
        "type of the first moment", "step memory", "optimizer", choices=_DTYPES, megatron=SAME)
    exp_avg_sq_dtype: str | None = recipe_field(
        "type of the second moment", "step memory", "optimizer", choices=_DTYPES, megatron=SAME)
    optimizer_cpu_offload: bool | None = recipe_field(
        "optimizer states and their update on the host", "step memory", "optimizer", megatron=SAME,
        forks="cpu_optimizer", torchtitan="training.enable_cpu_offload", maxtext="optimizer_memory_host_offload")
    optimizer_offload_fraction: float | None = recipe_field(
        "share of the optimizer that goes to the host (left out: all of it)", "step memory", "optimizer", least=0,
        most=1, megatron=SAME)
    overlap_cpu_optimizer_d2h_h2d: bool | None = recipe_field(
        "copies of an offloaded optimizer run beside its arithmetic", "step", "optimizer", megatron=SAME)
    offload_optimizer_states: bool | None = recipe_field(
        "optimizer states wait on the host between steps; the device updates", "step memory", "optimizer",
        megatron=SAME)
    muon_num_ns_steps: int | None = recipe_field(
        "Newton-Schulz iterations of Muon (left out: 5)", "step", "optimizer", most=100, megatron=SAME)
    muon_tp_mode: str | None = recipe_field(
        "how Muon treats matrices that tensor parallelism splits", "step", "optimizer",
        choices=("blockwise", "duplicated", "distributed"), megatron=SAME)
    lora: LoRA | None = field(
        default=None,
        metadata=about("low-rank adapters on frozen weights: `dim` and `targets`", "layer step memory", "optimizer"))
    rlhf_type: str | None = recipe_field(
        "training on preferences: a sample is a chosen and a rejected sequence (DPO)", "layer schedule step memory",
        "batch", choices=("dpo",), megatron=SAME)
    reference_free: bool = recipe_field(
        "preferences without a forward of the frozen model that training started from", "layer step memory", "batch",
        default=False, megatron=SAME)
    # recompute
    recompute_granularity: str | None = recipe_field(
        "what is computed again in the backward", "layer step memory", "recompute", essential=True,
        choices=("none", "full", "selective"), derived_from="recompute_granularity",
        nemo="activations_checkpoint_granularity", forks="activations_checkpoint_granularity")
    recompute_method: str | None = recipe_field(
        "which layers full recompute takes: uniform groups of them, or the first ones of a stage (block)",
        "layer step memory", "recompute", choices=("uniform", "block"), megatron=SAME,
        nemo="activations_checkpoint_method")
    recompute_num_layers: int | None = recipe_field(
        "replayed layers of a group (uniform) or stage (block)", "layer step memory", "recompute", unit="layers", least=0,
        essential=True, megatron="recompute_num_layers checkpoint_num_layers", nemo="activations_checkpoint_num_layers",
        forks="activations_checkpoint_num_layers checkpoint_num_layers")
    recompute_modules: tuple[str, ...] | None = recipe_field(
        "modules that selective recompute takes", "layer memory", "recompute", choices=_RECOMPUTABLE,
        derived_from="recompute_modules")
    recompute_saved: tuple[str, ...] | None = recipe_field(
        "outputs that full recompute keeps (MaxText)", "layer memory", "recompute",
        choices=("qkv_proj", "out_proj", "mlpwi", "mlpwo", "context"))
    recompute_layer_ids: tuple[int, ...] | None = recipe_field(
        "these layers are recomputed in full, the others not (Primus)", "layer step memory", "recompute", least=0,
        primus=SAME)
    cpu_offloading_num_layers: int | None = recipe_field(
        "layers whose activations go to the host", "layer step memory", "recompute", unit="layers", least=0,
        megatron=SAME)
    offload_modules: tuple[str, ...] | None = recipe_field(
        "modules whose saved inputs go to the host until the backward", "layer step memory", "recompute",
        choices=_OFFLOADABLE, derived_from="offload_modules")
    # mixture of experts
    moe_token_dispatcher_type: str | None = recipe_field(
        "how tokens reach their experts", "layer step memory", "dispatcher", choices=("allgather", "alltoall", "flex"),
        also="moe_token_dispatcher", derived_from="moe_token_dispatcher_type", nemo=SAME)
    moe_flex_dispatcher_backend: str | None = recipe_field(
        "the library of the flex dispatcher", "layer memory", "dispatcher", choices=("deepep", "hybridep", "mega_moe"),
        derived_from="moe_flex_dispatcher_backend use_turbo_deepep moe_enable_deepep use_turbo_mega_moe")
    moe_deepep_num_sms: int | None = recipe_field(
        "compute units of DeepEP's or HybridEP's dispatch and combine (left out: DeepEP's 20, 64 on AMD)", "layer step",
        "dispatcher", unit="compute units", megatron="moe_deepep_num_sms moe_flex_dispatcher_num_sms",
        primus="turbo_deepep_num_cu", derived_from="moe_hybridep_num_sms")
    moe_grouped_gemm: str | None = recipe_field(
        "how the products of local experts run", "layer memory", "dispatcher",
        choices=("te", "fused", "multi_stream", "loop", "legacy", "masked", "padded"),
        derived_from="moe_grouped_gemm use_turbo_grouped_mlp moe_use_legacy_grouped_gemm", nemo=SAME)
    moe_permute_fusion: bool | None = recipe_field(
        "one kernel permutes tokens", "layer memory", "dispatcher", megatron=SAME)
    moe_router_fusion: bool | None = recipe_field(
        "one kernel routes", "layer memory", "dispatcher", megatron="moe_router_fusion",
        primus="moe_use_fused_router_with_aux_score")
    moe_router_dtype: str | None = recipe_field(
        "type of the router's product", "layer memory", "dispatcher", choices=("fp32", "fp64", "bf16"), megatron=SAME)
    moe_router_force_load_balancing: bool | None = recipe_field(
        "tokens are spread evenly, whatever the router says", "layer memory", "dispatcher", megatron=SAME,
        torchtitan="debug.moe_force_load_balance")
    mock_data: bool | None = recipe_field(
        "random tokens in place of a data set", "layer step memory", "dispatcher", megatron=SAME,
        torchtitan="training.mock_data")
    moe_shared_expert_overlap: bool | None = recipe_field(
        "the shared expert runs beside the exchange of tokens", "layer memory", "dispatcher", megatron=SAME)
    moe_expert_capacity_factor: float | None = recipe_field(
        "tokens that an expert takes at most, over its even share; the rest is dropped", "layer memory", "dispatcher",
        megatron=SAME, nemo=SAME)
    moe_pad_expert_input_to_capacity: bool | None = recipe_field(
        "every expert is padded to its capacity", "layer memory", "dispatcher", megatron=SAME)
    overlap_moe_expert_parallel_comm: bool | None = recipe_field(
        "the exchange of tokens runs behind another micro-batch", "layer schedule step memory", "dispatcher",
        megatron=SAME)
    delay_wgrad_compute: bool | None = recipe_field(
        "weight gradients are computed apart from the rest of the backward", "layer step", "dispatcher", megatron=SAME)
    sync_free_stage: int | None = recipe_field(
        "how much of an MoE layer runs without waiting for the host, 0 to 3 (Primus-Turbo)", "layer step memory",
        "dispatcher", least=0, most=3, primus="turbo_sync_free_moe_stage")
    moe_all_to_all_kernel: str | None = recipe_field(
        "a library's all-to-all (NCCL, RCCL), or a compiler's own kernel that copies over peer mappings", "layer",
        "dispatcher", choices=("collective", "one_shot"))
    moe_dispatch_scatter_adds: int | None = recipe_field(
        "scatter-additions over the receive buffer in the backward of a compiled dispatch", "layer memory",
        "dispatcher", least=0)
    # fusions, loss, host
    transformer_impl: str | None = recipe_field(
        "whose modules a layer is made of: Megatron-LM's own or Transformer Engine's (local: no 8-bit products, scores in "
        "memory unless `attention_backend` is flash)", "layer step memory", "kernels",
        choices=("local", "transformer_engine"), megatron=SAME)
    jit_fusion: bool | None = recipe_field(
        "a compiler joins the kernels of scripted functions: TorchScript's until PyTorch 2.1, torch.compile in Megatron-LM "
        "from 2024-01 on", "layer memory", "kernels", own=SAME)
    apply_rope_fusion: bool | None = recipe_field(
        "one kernel rotates queries and keys", "layer memory", "kernels", megatron="apply_rope_fusion rope_fusion")
    bias_activation_fusion: bool | None = recipe_field(
        "one kernel adds the bias and applies the activation", "layer memory", "kernels",
        derived_from="bias_swiglu_fusion bias_gelu_fusion")
    activation_func_fp8_input_store: bool | None = recipe_field(
        "the input of the activation is kept in 8 bits", "layer memory", "precision")
    cross_entropy_fusion: str | None = recipe_field(
        "how the loss is computed", "layer memory", "kernels",
        choices=("none", "unfused", "native", "te", "fp32", "bf16", "compiled", "linear", "liger", "liger_cross_entropy"),
        derived_from="cross_entropy_loss_fusion cross_entropy_fusion_impl")
    attention_backend: str | None = recipe_field(
        "which attention kernels run", "layer step memory", "kernels", megatron=SAME,
        choices=("flash", "fa2", "fa3", "fa4", "fused", "unfused", "local", "auto", "materialised"))
    attention_dropout: float | None = recipe_field(
        "share of attention scores that are dropped: above 0 unfused attention keeps a mask and a second copy of them",
        "layer memory", "kernels", least=0, most=1, megatron=SAME)
    use_turbo_attention: bool | None = recipe_field(
        "Primus-Turbo's attention in place of Transformer Engine's", "layer step memory", "kernels", primus=SAME)
    use_turbo_gemm: bool | None = recipe_field(
        "Primus-Turbo's products in the linear layers (its grouped ones: `moe_grouped_gemm`)", "layer step memory",
        "kernels", primus=SAME)
    use_turbo_rms_norm: bool | None = recipe_field("Primus-Turbo's norms", "layer memory", "kernels", primus=SAME)
    cuda_graph_scope: tuple[str, ...] | None = recipe_field(
        "what runs as CUDA graphs; none: nothing", "layer step memory", "kernels", choices=_GRAPHS,
        derived_from="cuda_graph_impl cuda_graph_scope enable_cuda_graph external_cuda_graph")
    torch_compile: bool | None = recipe_field(
        "layers are compiled: element-wise work in fewer kernels", "layer step memory", "kernels")
    numa_binding: bool | None = recipe_field(
        "processes are bound to the sockets of their GPUs", "layer step", "kernels", primus=SAME)
    manual_gc: bool | None = recipe_field(
        "garbage is collected on all ranks together", "step", "kernels", megatron=SAME)
    make_vocab_size_divisible_by: int | None = recipe_field(
        "the vocabulary is padded to a multiple of this, times tp", "layer memory", "kernels", megatron=SAME, nemo=SAME)
    check_for_nan_in_loss_and_grad: bool | None = recipe_field(
        "loss and gradients are checked for NaN each step", "layer step", "kernels", megatron=SAME)
    create_attention_mask_in_dataloader: bool | None = recipe_field(
        "the data loader makes the attention mask", "layer memory", "kernels", megatron=SAME)
    device_memory_fraction: float | None = recipe_field(
        "share of the device that the framework takes as one pool at start (XLA_PYTHON_CLIENT_MEM_FRACTION)", "memory",
        "kernels", most=1)
    # fmt: on

    @property
    def quant_type(self) -> str | None:
        """Returns how linear weights below adapters are kept, if in few bits."""
        return self.lora.quant_type if self.lora else None

    @property
    def quantised(self) -> bool:
        """Returns whether linear layers multiply in 8 or 4 bits."""
        return self.precision in ("fp8", "mxfp8", "mxfp4", "nvfp4")

    @property
    def replica_ranks(self) -> int:
        """Returns the ranks that hold one copy of the model: tp · tp2 · cp · pp."""
        return self.tp * self.tp2 * self.cp * self.pp

    def fewest_gpus(self, moe: bool) -> int:
        """Returns the GPUs that hold all parallel groups once; ``moe``: those of experts, too."""
        return lcm(self.replica_ranks, (self.etp * self.ep if moe else 1) * self.pp)

    @property
    def panels(self) -> int:
        """Returns the panels of SUMMA: as stated, else the fewest that have one owner in every row and column of the
        grid."""
        return self.summa_panels or lcm(self.tp, self.tp2)

    @property
    def domain(self) -> tuple[int, ...] | None:
        """Returns the ranks of tp, tp2, cp, dp and pp that share a fast domain; None where ``fast_domain`` is not
        stated."""
        return domains.inside(self.fast_domain)

    @property
    def sequences(self) -> int:
        """Returns the sequences of one sample: two where preferences are trained."""
        return 2 if self.rlhf_type else 1

    @property
    def images(self) -> int:
        """Returns the images of one sample."""
        return self.sequences * (1 if self.images_per_sample is None else self.images_per_sample)

    @property
    def reference(self) -> bool:
        """Returns whether every micro-batch also passes forward through the frozen model that training started from."""
        return self.rlhf_type is not None and not self.reference_free

    @property
    def token_ranks(self) -> int:
        """Returns the ranks that share the tokens of a sequence beside tensor parallelism: tp2 · cp."""
        return self.tp2 * self.cp
