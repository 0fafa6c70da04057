"""Every field of a recipe changes something: the time, the memory, or whether the run is possible at all."""

import dataclasses
from typing import Any

import pytest

from projector.errors import InputError, Unsupported
from projector.hardware import catalogue
from projector.projection import project
from projector.workload import zoo
from projector.workload.lora import LoRA
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

BASE: dict[str, Any] = {
    "micro_batch_size": 2, "global_batch_size": 256, "seq_length": 4096, "recompute_granularity": "none",
    "data_parallel_sharding": "optim",
}  # fmt: skip
EXPERTS: dict[str, Any] = {"model": "deepseek_v2_lite", "ep": 8, "moe_token_dispatcher_type": "alltoall"}
FLEX: dict[str, Any] = EXPERTS | {"moe_token_dispatcher_type": "flex"}
PIPE: dict[str, Any] = {"pp": 4}
FP8: dict[str, Any] = {"precision": "fp8"}
FSDP: dict[str, Any] = {"framework": "torchtitan", "data_parallel_sharding": "optim_grads_params"}

SEES: dict[str, Any] = {"model": "llava_1.5_7b"}
XLA: dict[str, Any] = FSDP | {"framework": "maxtext"}
AHEAD = {"xla_gpu_enable_pipelined_all_gather": True, "xla_gpu_enable_while_loop_double_buffering": True}
GRID: dict[str, Any] = {"framework": "analytic", "tp": 2, "tensor_parallel_algorithm": "summa"}
# field: (value, another value, what else the run has)
CASES: dict[str, tuple[object, object, dict[str, Any]]] = {
    "micro_batch_size": (1, 2, {}),
    "images_per_sample": (1, 2, SEES),
    "freeze_language_model": (False, True, SEES),
    "freeze_vision_model": (False, True, SEES),
    "recompute_vision": (False, True, SEES | {"recompute_granularity": "full"}),
    "encoder_seq_length": (512, 1024, {"model": "t5_large", "seq_length": 128}),
    "global_batch_size": (128, 256, {}),
    "seq_length": (2048, 4096, {}),
    "document_lengths": (None, (1024,) * 4, {}),
    "rlhf_type": (None, "dpo", {}),
    "reference_free": (False, True, {"rlhf_type": "dpo"}),
    "tp": (1, 2, {}),
    "tp2": (2, 4, GRID),
    "tensor_parallel_algorithm": ("1d", "2d_sequence", {"tp": 2, "cp": 2}),
    "summa_panels": (4, 16, GRID | {"tp2": 2}),
    "fast_domain": (None, "dp8", {"tp": 2}),
    "pp": (1, 2, {}),
    "vpp": (1, 2, PIPE),
    "cp": (1, 2, {}),
    "ep": (4, 8, EXPERTS),
    "etp": (1, 2, EXPERTS | {"tp": 2}),
    "precision": ("bf16", "fp8", {}),
    "fp8_recipe": ("tensorwise", "blockwise", FP8),
    "fp8_param_gather": (False, True, FP8),
    "fp8_dot_product_attention": (False, True, FP8),
    "first_last_layers_bf16": (False, True, FP8),
    "num_layers_at_start_in_bf16": (1, 3, {**FP8, "first_last_layers_bf16": True}),
    "num_layers_at_end_in_bf16": (1, 0, {**FP8, "first_last_layers_bf16": True}),
    "sequence_parallel": (False, True, {"tp": 4}),
    "cp_comm_type": ("p2p", "a2a", {"cp": 2}),
    "dynamic_context_parallel": (None, True, {"cp": 2, "cp_comm_type": "a2a", "document_lengths": (1024,) * 4}),
    "tp_comm_overlap": (False, True, {"tp": 4, "sequence_parallel": True}),
    "pipeline_schedule": ("1f1b", "zb-h1", PIPE),
    "pipeline_model_parallel_layout": (None, "Et*7|t*8|t*8|t*9L", PIPE),
    "decoder_first_pipeline_num_layers": (None, 5, PIPE),
    "decoder_last_pipeline_num_layers": (None, 5, PIPE),
    "account_for_embedding_in_pipeline_split": (False, True, PIPE | {"num_layers": 31}),
    "account_for_loss_in_pipeline_split": (False, True, PIPE | {"num_layers": 31}),
    "allow_uneven_pipeline_split": (False, True, PIPE | {"num_layers": 30}),
    "pipeline_remainder": ("weighted", "first", PIPE | {"num_layers": 30, "allow_uneven_pipeline_split": True}),
    "microbatch_group_size_per_vp_stage": (4, 8, PIPE | {"vpp": 2}),
    "overlap_p2p_comm": (False, True, PIPE | {"vpp": 2}),
    "defer_embedding_wgrad_compute": (False, True, PIPE),
    "data_parallel_sharding": ("no_shard", "optim", {}),
    "data_parallel_shard_size": (None, 8, FSDP),
    "fsdp_reshard_after_forward": (True, False, FSDP | PIPE | {"tp": 2}),
    "defer_fsdp_grad_sync": (False, True, FSDP),
    "xla_gpu_all_gather_combine_threshold_bytes": (1, 2**33, XLA),
    **dict.fromkeys(AHEAD, (False, True, XLA | AHEAD)),
    "overlap_grad_reduce": (False, True, {}),
    "overlap_param_gather": (False, True, {}),
    "ddp_bucket_size": (10_000_000, 2_000_000_000, {"overlap_grad_reduce": True}),
    "grad_reduce_in_bf16": (False, True, {}),
    "gradient_accumulation_fusion": (False, True, {}),
    "num_distributed_optimizer_instances": (1, 4, {}),
    "optimizer": ("adam", "sgd", {}),
    "use_precision_aware_optimizer": (False, True, {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}),
    "main_grads_dtype": ("fp32", "bf16", {"use_precision_aware_optimizer": True}),
    "main_params_dtype": ("fp32", "fp16", {"use_precision_aware_optimizer": True}),
    "exp_avg_dtype": ("fp32", "bf16", {"use_precision_aware_optimizer": True}),
    "exp_avg_sq_dtype": ("fp32", "bf16", {"use_precision_aware_optimizer": True}),
    "optimizer_cpu_offload": (False, True, {}),
    "optimizer_offload_fraction": (0.5, 1.0, {"optimizer_cpu_offload": True}),
    "overlap_cpu_optimizer_d2h_h2d": (False, True, {"optimizer_cpu_offload": True}),
    "offload_optimizer_states": (False, True, {}),
    "muon_num_ns_steps": (5, 10, {"optimizer": "muon"}),
    "muon_tp_mode": ("blockwise", "duplicated", {"optimizer": "muon", "tp": 4}),
    "use_turbo_attention": (False, True, {"framework": "primus", "gpu": "mi355x", "cp": 2}),
    "use_turbo_gemm": (False, True, {"gradient_accumulation_fusion": True}),
    "use_turbo_rms_norm": (False, True, FP8 | {"fp8_recipe": "delayed"}),
    "lora": (None, LoRA(dim=16), {}),
    "recompute_granularity": ("none", "full", {}),
    "recompute_method": ("uniform", "block", {"recompute_granularity": "full", "recompute_num_layers": 2}),
    "recompute_num_layers": (1, 4, {"recompute_granularity": "full", "recompute_method": "block"}),
    "recompute_modules": (("core_attn",), ("mlp",), {"recompute_granularity": "selective"}),
    "recompute_saved": (None, ("out_proj", "context"), {"recompute_granularity": "full"}),
    "recompute_layer_ids": (None, (0, 1), {"recompute_granularity": "full"}),
    "cpu_offloading_num_layers": (None, 4, {}),
    "offload_modules": ((), ("core_attn",), {}),
    "moe_token_dispatcher_type": ("alltoall", "allgather", EXPERTS),
    "moe_flex_dispatcher_backend": ("deepep", "hybridep", FLEX),
    "moe_deepep_num_sms": (4, 20, FLEX),
    "moe_grouped_gemm": ("fused", "loop", EXPERTS),
    "moe_permute_fusion": (False, True, EXPERTS),
    "moe_router_fusion": (False, True, EXPERTS),
    "moe_router_dtype": (None, "fp32", EXPERTS),
    "moe_router_force_load_balancing": (False, True, EXPERTS),
    "moe_shared_expert_overlap": (False, True, EXPERTS),
    "moe_expert_capacity_factor": (None, 1.0, EXPERTS | {"mock_data": False}),
    "moe_pad_expert_input_to_capacity": (False, True, EXPERTS | {"moe_expert_capacity_factor": 2.0}),
    "overlap_moe_expert_parallel_comm": (False, True, EXPERTS),
    "delay_wgrad_compute": (
        False,
        True,
        EXPERTS | {"overlap_moe_expert_parallel_comm": True, "ep": 32, "seq_length": 1024},
    ),
    "sync_free_stage": (None, 1, FLEX | {"framework": "primus"}),
    "moe_all_to_all_kernel": ("collective", "one_shot", EXPERTS),
    "moe_dispatch_scatter_adds": (None, 2, FLEX | {"framework": "maxtext"}),
    "transformer_impl": ("local", "transformer_engine", {}),
    "jit_fusion": (False, True, {"model": "gpt3_175b"}),
    "apply_rope_fusion": (False, True, {}),
    "bias_activation_fusion": (False, True, {}),
    "activation_func_fp8_input_store": (False, True, {}),
    "cross_entropy_fusion": ("unfused", "te", {}),
    "attention_backend": ("flash", "unfused", {}),
    "attention_dropout": (0.0, 0.1, {"attention_backend": "unfused"}),
    "cuda_graph_scope": ((), ("attn",), EXPERTS | {"micro_batch_size": 1, "seq_length": 512}),
    "torch_compile": (False, True, {}),
    "numa_binding": (
        False,
        True,
        EXPERTS | {"framework": "primus", "micro_batch_size": 1, "seq_length": 512, "moe_router_fusion": False},
    ),
    "manual_gc": (False, True, {}),
    "make_vocab_size_divisible_by": (1, 8192, {}),
    "check_for_nan_in_loss_and_grad": (False, True, {}),
    "create_attention_mask_in_dataloader": (False, True, {}),
    "device_memory_fraction": (0.7, 0.9, {"framework": "maxtext"}),
}


def outcome(**stated: Any) -> object:
    model = zoo.load(stated.pop("model", "llama3_8b"))
    if "num_layers" in stated:
        model = dataclasses.replace(model, num_layers=stated.pop("num_layers"))
    framework = stated.pop("framework", "megatron-lm")
    cluster = catalogue.default_cluster(stated.pop("gpu", "h100_sxm"))
    work = Workload(model=model, recipe=Recipe(**(BASE | stated)), gpus=64, framework=framework)
    try:
        made = project(work, cluster)
    except (InputError, Unsupported) as error:
        return str(error)
    return made.step_seconds, made.memory.reserved, made.memory.usable, made.memory.required


def test_no_field_is_left_out() -> None:
    later = {"mock_data"}  # what fills the sequences is not a switch
    assert set(CASES) | later >= {f.name for f in dataclasses.fields(Recipe)}


@pytest.mark.parametrize("field", CASES)
def test_a_field_changes_something(field: str) -> None:
    one, other, rest = CASES[field]
    assert outcome(**(rest | {field: one})) != outcome(**(rest | {field: other}))
