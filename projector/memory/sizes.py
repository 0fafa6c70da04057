"""The handful of per-rank sizes that every memory formula uses, derived once from a resolved workload."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from projector.frameworks.types import Resolved
from projector.layers.imbalance import dispersion, fullest_rank
from projector.workload.model import Model
from projector.workload.recipe import Recipe

__all__ = ["DTYPE_BYTES", "MIB", "QUANTISED", "Sizes", "quantised_bytes", "sizes"]

MIB = float(2**20)

# Bytes of one element by the names Megatron-LM's arguments use.
DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}

# Precisions whose linears read quantised operands (the modules around them stay in bf16).
QUANTISED = frozenset({"fp8", "mxfp8", "mxfp4", "nvfp4"})


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes on one rank, in elements; ``element`` is the bytes of one activation element (2; 4 in fp32).

    ``tokens``: tokens of one micro-batch after context parallelism. ``shard``: the same after sequence parallelism.
    ``sequence``: length of the sequence part of one rank. ``hidden_bytes``: one hidden-state tensor (``shard`` rows),
    the *x* of the comments. ``routed``: token copies a rank sends to experts; ``received``: those its experts compute.
    """

    tokens: int
    shard: int
    sequence: int
    hidden: int
    tp: int
    element: float
    heads: float
    groups: float
    ffn: float
    vocab: float
    routed: float = 0.0
    received: float = 0.0
    expert_ffn: float = 0.0
    shared_ffn: float = 0.0

    @property
    def hidden_bytes(self) -> float:
        return self.element * self.shard * self.hidden

    @property
    def gathered_bytes(self) -> float:
        """A hidden-state tensor of all tokens of the tensor-parallel group, bytes."""
        return self.element * self.tokens * self.hidden

    @property
    def sequence_parallel(self) -> bool:
        return self.shard < self.tokens


@lru_cache(maxsize=1024)
def sizes(resolved: Resolved) -> Sizes:
    """Per-rank sizes. Megatron turns sequence parallelism off at TP 1 (Megatron-LM training/arguments.py)."""
    workload = resolved.workload
    model, recipe = workload.model, workload.recipe
    tp = recipe.tp
    tokens = recipe.micro_batch_size * recipe.seq_length // recipe.cp
    shard = tokens // tp if recipe.sequence_parallel and tp > 1 else tokens
    routed, received = _routing(model, recipe, shard) if model.moe else (0.0, 0.0)
    if resolved.execution.static_shapes and not recipe.moe_pad_expert_input_to_capacity:
        received *= recipe.ep  # buffers of a compiled dropless layer hold every copy of every rank
    elif not recipe.moe_expert_capacity_factor:
        experts = model.moe.num_experts // recipe.ep if model.moe else 1
        received *= fullest_rank(dispersion(recipe, resolved.execution), max(1, experts), recipe.ep, routed)
    return Sizes(
        tokens=tokens,
        shard=shard,
        sequence=recipe.seq_length // recipe.cp,
        hidden=model.hidden_size,
        tp=tp,
        element=4.0 if recipe.precision == "fp32" else 2.0,
        heads=model.num_attention_heads / tp,
        groups=max(1.0, model.num_query_groups / tp),
        ffn=model.ffn_hidden_size / tp,
        vocab=workload.padded_vocab_size / tp,
        routed=routed,
        received=received,
        expert_ffn=model.moe.moe_ffn_hidden_size / recipe.etp if model.moe else 0.0,
        shared_ffn=model.moe.moe_shared_expert_intermediate_size / tp if model.moe else 0.0,
    )


def _routing(model: Model, recipe: Recipe, shard: int) -> tuple[float, float]:
    """Token copies sent and received under balanced routing.

    With capacity and padding every expert gets ``ceil(shard·k/E·factor)`` rows, and the ceiling counts
    (Megatron-LM core/transformer/moe/moe_utils.py, get_capacity). Expert tensor parallelism gathers its group's rows.
    """
    assert model.moe is not None
    experts, topk = model.moe.num_experts, model.moe.moe_router_topk
    factor = recipe.moe_expert_capacity_factor
    if factor is not None and factor > 0 and recipe.moe_pad_expert_input_to_capacity:
        sent = float(-(-int(shard * topk * factor) // experts) * experts)
    elif factor is not None and factor > 0:
        sent = min(1.0, factor) * shard * topk
    else:
        sent = float(shard * topk)
    return sent, sent * recipe.etp


def quantised_bytes(recipe: Recipe) -> float:
    """Bytes of one element of a quantised operand with its scales (one orientation).

    MXFP8: one scale byte per 32 elements; blockwise activations: fp32 per 128; NVFP4: one byte per 16, MXFP4 per 32
    (TransformerEngine pytorch/tensor/{mxfp8,float8_blockwise,nvfp4}_tensor.py).
    """
    if recipe.precision == "nvfp4":
        return 0.5 + 1 / 16
    if recipe.precision == "mxfp4":
        return 0.5 + 1 / 32
    if recipe.precision == "mxfp8" or recipe.fp8_recipe == "mxfp8":
        return 1.0 + 1 / 32
    if recipe.fp8_recipe == "blockwise":
        return 1.0 + 4 / 128
    return 1.0
