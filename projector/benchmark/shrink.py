"""A workload shrunk to one device: what one rank of it computes, as a workload of its own.

Pipeline stages are left out (layers are timed by themselves), then expert parallelism goes (a rank's experts and the
tokens that reach them stay), then tensor parallelism (a rank's heads and widths stay), then the context split (a
rank's tokens stay). Communication is what goes: it is priced, not timed.
"""

from __future__ import annotations

from dataclasses import replace

from projector.workload.model import Model, MoE
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

__all__ = ["shrink"]


def shrink(workload: Workload) -> tuple[Workload, tuple[str, ...]]:
    """(the workload of one rank on one device, notes on what differs from the rank's part of the whole)."""
    model, recipe = workload.model, workload.recipe
    notes: list[str] = []
    moe = None if model.moe is None else _experts(model.moe, model, recipe, notes)
    made = replace(
        model,
        num_layers=model.num_layers,
        num_attention_heads=_part(model.num_attention_heads, recipe.tp),
        num_query_groups=_part(model.num_query_groups, recipe.tp),
        ffn_hidden_size=_part(model.ffn_hidden_size, recipe.tp),
        vocab_size=_part(workload.padded_vocab_size, recipe.tp),
        moe=moe,
    )
    if recipe.tp > 1 and recipe.sequence_parallel:
        notes.append("norms and residuals run on all tokens, not on the sequence-parallel shard")
    if recipe.cp > 1:
        notes.append("attention runs on the rank's own tokens, not on the blocks it exchanges")
    if recipe.precision not in ("bf16", "fp16", "fp32"):
        notes.append(f"linears run in bf16, not in {recipe.precision}")
    return Workload(
        model=made,
        recipe=_alone(recipe),
        gpus=1,
        framework=workload.framework,
        framework_date=workload.framework_date,
    ), tuple(notes)


def _part(size: int, ranks: int) -> int:
    return max(1, -(-size // ranks))


def _experts(moe: MoE, model: Model, recipe: Recipe, notes: list[str]) -> MoE:
    experts = _part(moe.num_experts, recipe.ep)
    topk = min(moe.moe_router_topk, experts)
    if topk < moe.moe_router_topk:
        notes.append(f"a token reaches {topk} experts, not {moe.moe_router_topk}: a rank of {model.name} holds no more")
    return replace(
        moe,
        num_experts=experts,
        moe_router_topk=topk,
        moe_ffn_hidden_size=_part(moe.moe_ffn_hidden_size, recipe.etp),
        moe_shared_expert_intermediate_size=-(-moe.moe_shared_expert_intermediate_size // recipe.tp),
        moe_router_num_groups=None,
        moe_router_group_topk=None,
    )


def _alone(recipe: Recipe) -> Recipe:
    """The recipe without parallel groups: batch of one micro-batch, a rank's tokens."""
    narrow = recipe.precision not in ("bf16", "fp16", "fp32")
    return Recipe(
        micro_batch_size=recipe.micro_batch_size,
        global_batch_size=recipe.micro_batch_size,
        seq_length=_part(recipe.seq_length, recipe.cp),
        precision="bf16" if narrow else recipe.precision,
        recompute_granularity="none",
        data_parallel_sharding="no_shard",
        gradient_accumulation_fusion=recipe.gradient_accumulation_fusion,
        moe_router_force_load_balancing=True,
        moe_grouped_gemm=recipe.moe_grouped_gemm,
        apply_rope_fusion=recipe.apply_rope_fusion,
        bias_activation_fusion=recipe.bias_activation_fusion,
        cross_entropy_fusion=recipe.cross_entropy_fusion,
        torch_compile=recipe.torch_compile,
    )
