"""Declares low-rank adapters as a field of a recipe."""

from __future__ import annotations

from dataclasses import field

from projector.dataclass import dataclass
from projector.workload.declared import about, recipe_field

_ADAPTED = (
    *("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "linear_q_proj", "linear_q_down_proj"),
    *("linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj", "eh_proj", "output_layer"),
)


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Low-rank adapters on frozen weights. ``targets``: Megatron linear names (``linear_qkv``, ``linear_proj``, …)."""

    dim: int = field(metadata=about("rank of the adapters", "layer step memory", also="lora_rank lora_r"))
    targets: tuple[str, ...] = recipe_field(
        "linear layers that have adapters", "layer step memory", default=("linear_qkv", "linear_proj"), choices=_ADAPTED
    )
    share_expert_adapters: bool = recipe_field(
        "one adapter for all experts of a rank, not one for each", "layer step memory", default=True
    )
    normalize_moe_lora: bool = recipe_field(
        "adapters of routed experts have their rank divided by the experts of a token",
        "layer step memory",
        default=False,
    )
