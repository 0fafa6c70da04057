"""A workload as Megatron-LM's arguments: the inverse of ``projector.intake.megatron_args``.

Not Megatron-LM's are the names ``trainer_*`` and ``pipeline_schedule``, and words where it has flags:
``moe_grouped_gemm``, ``data_parallel_sharding``.
"""

from __future__ import annotations

from projector.workload.model import MLA, Model, MoE
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

_SAME = (
    *("micro_batch_size", "global_batch_size", "seq_length", "sequence_parallel", "grad_reduce_in_bf16"),
    *("gradient_accumulation_fusion", "optimizer", "overlap_grad_reduce", "overlap_param_gather", "manual_gc"),
    *("apply_rope_fusion", "make_vocab_size_divisible_by", "data_parallel_sharding"),
    *("check_for_nan_in_loss_and_grad", "create_attention_mask_in_dataloader", "pipeline_schedule"),
    *("pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "allow_uneven_pipeline_split"),
)
_SAME_MOE = (
    *("moe_token_dispatcher_type", "moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion", "moe_router_dtype"),
    *("moe_router_force_load_balancing", "moe_shared_expert_overlap"),
)


def arguments(workload: Workload) -> dict[str, object]:
    """Arguments by name; what is None is printed as ``None``, as Megatron-LM does."""
    model, recipe = workload.model, workload.recipe
    found = {**_model(model), **_recipe(recipe)}
    if model.moe is not None:
        found |= _moe(model.moe) | {name: getattr(recipe, name) for name in _SAME_MOE}
    return {**found, "world_size": workload.gpus, "data_parallel_size": workload.dp}


def _model(model: Model) -> dict[str, object]:
    found: dict[str, object] = {
        name: getattr(model, name)
        for name in (
            *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels", "vocab_size"),
            *("num_query_groups", "max_position_embeddings", "normalization", "qk_layernorm", "add_bias_linear"),
            *("add_qkv_bias", "untie_embeddings_and_output_weights", "position_embedding_type"),
        )
    }
    found |= {"trainer_model": model.name, "trainer_family": model.family, "swiglu": model.gated_linear_unit}
    found["group_query_attention"] = model.num_query_groups != model.num_attention_heads
    return found | _mla(model.mla)


def _mla(mla: MLA | None) -> dict[str, object]:
    if mla is None:
        return {"multi_latent_attention": False}
    names = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
    return {"multi_latent_attention": True, **{name: getattr(mla, name) for name in names}}


def _moe(moe: MoE) -> dict[str, object]:
    return {
        "num_experts": moe.num_experts,
        "moe_router_topk": moe.moe_router_topk,
        "moe_ffn_hidden_size": moe.moe_ffn_hidden_size,
        "moe_layer_freq": list(moe.moe_layer_freq),
        "moe_shared_expert_intermediate_size": moe.moe_shared_expert_intermediate_size or None,
        "moe_shared_expert_gate": moe.moe_shared_expert_gate,
        "moe_router_score_function": moe.moe_router_score_function,
    }


def _recipe(recipe: Recipe) -> dict[str, object]:
    found: dict[str, object] = {name: getattr(recipe, name) for name in _SAME}
    return found | {
        "tensor_model_parallel_size": recipe.tp,
        "pipeline_model_parallel_size": recipe.pp,
        "virtual_pipeline_model_parallel_size": recipe.vpp if recipe.vpp > 1 else None,
        "context_parallel_size": recipe.cp,
        "expert_model_parallel_size": recipe.ep,
        "expert_tensor_parallel_size": recipe.etp,
        "bf16": recipe.precision in ("bf16", "fp8"),
        "fp8": "hybrid" if recipe.precision == "fp8" else None,
        "fp8_recipe": recipe.fp8_recipe if recipe.precision == "fp8" else None,
        "fp16": recipe.precision == "fp16",
        "cross_entropy_loss_fusion": False,
        "bias_swiglu_fusion": bool(recipe.bias_activation_fusion),
        "bias_gelu_fusion": bool(recipe.bias_activation_fusion),
        "recompute_granularity": None,
        "recompute_activations": False,
    }
