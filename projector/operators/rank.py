"""The sizes and types that one rank sees.

Tensor parallelism splits weights: every linear sees all ``tokens`` of the context-parallel rank. Sequence parallelism
splits what lies between the linears: norms, residuals and the router see ``shard_tokens``.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Self

from projector.dataclass import dataclass
from projector.workload.model import Model
from projector.workload.recipe import Recipe

WIDTH = MappingProxyType({"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0})
"""Bytes of one element of each type, by the names that Megatron-LM's arguments use."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """The sizes (elements) and types that one rank sees. ``tokens`` = s·b/(cp·tp2); ``shard_tokens`` = tokens/tp with
    sequence parallelism. SUMMA splits a hidden state by width, tokens × hidden/tp: as many elements as ``shard_tokens``
    rows.

    ``dtype``/``act``: compute type outside quantised linears and its bytes; ``linear_dtype``/``scaling``: GEMM operands
    of the linears (``dtype`` and "" when not quantised); ``cast_recipe``: how they are quantised ("" if not);
    ``gathered``: bytes of one element of an all-gathered linear input; ``node_ranks``: ranks of a node; ``compiled``: a
    compiler joins element-wise neighbours.
    """

    model: Model
    recipe: Recipe
    batch: int
    tokens: int
    shard_tokens: int
    sp: bool
    hidden: int
    heads: int
    kv_heads: int
    vocab: int
    dtype: str
    act: float
    linear_dtype: str
    scaling: str
    cast_recipe: str
    gathered: float
    compiled: bool = False
    node_ranks: int = 8

    @property
    def tp(self) -> int:
        return self.recipe.tp

    @property
    def summa(self) -> bool:
        """Returns whether matrix products follow SUMMA: on a grid of one row they are one-dimensional tensor
        parallelism."""
        return self.recipe.tp2 > 1

    @property
    def panels(self) -> int:
        return self.recipe.panels

    @property
    def hidden_bytes(self) -> float:
        """Returns the bytes of one hidden state between the linears: the rows of the sequence-parallel shard."""
        return self.act * self.shard_tokens * self.hidden

    @property
    def residual_bytes(self) -> float:
        """Returns the bytes of the residual that passes from layer to layer, all its streams together."""
        return self.act * self.shard_tokens * self.model.residual_width

    @property
    def gathered_bytes(self) -> float:
        """Returns the bytes of a hidden state with all rows of the tensor-parallel group."""
        return self.act * self.tokens * self.hidden

    @property
    def quantised(self) -> bool:
        return bool(self.cast_recipe)

    @property
    def experts(self) -> Self:
        """Returns this view as routed experts have it: Megatron-LM's legacy grouped GEMM has no operands below 16
        bits."""
        if self.recipe.moe_grouped_gemm != "legacy" or (self.recipe.sync_free_stage or 0) >= 2:
            return self
        return replace(self, linear_dtype=self.dtype, scaling="", cast_recipe="", gathered=self.act)

    @property
    def trainable(self) -> bool:
        """Returns whether the base weights are trained: not beside adapters, and not in a frozen language model."""
        return self.recipe.lora is None and not self.recipe.freeze_language_model
