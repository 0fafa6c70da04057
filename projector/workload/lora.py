"""Declares low-rank adapters as a field of a recipe."""

from __future__ import annotations

from dataclasses import MISSING

from projector.dataclass import dataclass
from projector.workload.field_facts import recipe_field

#: The linear layers of a block, by Megatron's names: all that a policy of "all linears" means where there is no MLA.
BLOCK_LINEARS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
_ADAPTED = (
    *(*BLOCK_LINEARS, "linear_q_proj", "linear_q_down_proj"),
    *("linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj", "eh_proj", "output_layer"),
)
_EFFECTS = "layer step memory"


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Low-rank adapters on frozen weights. ``targets``: Megatron linear names (``linear_qkv``, ``linear_proj``, …)."""

    # fmt: off
    dim: int = recipe_field("rank of the adapters", _EFFECTS, default=MISSING, also="lora_rank lora_r")
    targets: tuple[str, ...] = recipe_field(
        "linear layers that have adapters", _EFFECTS, default=("linear_qkv", "linear_proj"), choices=_ADAPTED)
    share_expert_adapters: bool = recipe_field(
        "one adapter for all experts of a rank, not one for each", _EFFECTS, default=True)
    quant_type: str | None = recipe_field(
        "the few bits in which linear weights below adapters are kept (4: `nf4`, `fp4`; 8: `int8`, LLM.int8()); left out: "
        "none", _EFFECTS, choices=("nf4", "fp4", "int8"), also="bnb_4bit_quant_type")
    double_quant: bool = recipe_field(
        "scales of blocks of 4-bit weights are kept in 8 bits", _EFFECTS, default=False, also="bnb_4bit_use_double_quant")
    frozen_dtype: str = recipe_field(
        "type in which frozen weights of 16-bit training are kept: `fp32` where a model was loaded so and is cast for each "
        "product (torch.autocast), or before ranks gather it", _EFFECTS, default="bf16", choices=("bf16", "fp32"))
    normalize_moe_lora: bool = recipe_field(
        "adapters of routed experts have their rank divided by the experts of a token", _EFFECTS, default=False)
    # fmt: on

    @property
    def weight_bytes(self) -> float:
        """Returns the bytes of a frozen weight that is not quantised, in training by 16 bits."""
        return 4.0 if self.frozen_dtype == "fp32" else 2.0

    @property
    def code_bytes(self) -> float:
        """Returns the bytes of a quantised weight without its scales, which is what ranks that share it send; 0 where none
        is."""
        return 0.0 if self.quant_type is None else 1.0 if self.quant_type == "int8" else 0.5
