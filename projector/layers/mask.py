"""The attention mask that a data loader makes beside the tokens."""

from __future__ import annotations

from projector.frameworks.types import Resolved
from projector.size import real


def mask_bytes(resolved: Resolved) -> float:
    """Returns the bytes of the mask of one micro-batch, 0 where none is made: a boolean [b, 1, s, s], whatever
    attention makes of it (``create_attention_mask_in_dataloader``; Megatron-LM megatron/training/utils.py,
    ``get_batch_on_this_tp_rank``). The first and the last stage have it, every rank of a tensor-parallel group whole;
    context-parallel ranks then take their rows of it (megatron/core/utils.py, ``get_batch_on_this_cp_rank``). An
    encoder has none."""
    recipe = resolved.workload.recipe
    if not recipe.create_attention_mask_in_dataloader or not resolved.workload.model.causal:
        return 0.0
    return real(recipe.micro_batch_size * recipe.sequences) * recipe.seq_length**2


def plausible(resolved: Resolved) -> bool:
    """Returns whether a mask that nobody asked for can have been meant: it is no larger than the 16-bit inputs of the
    layers of a stage, which a rank keeps even where it recomputes everything. Kernels of causal attention read no mask,
    and Megatron-LM has ``--no-create-attention-mask-in-dataloader`` for sequences for which it would not fit
    (megatron/training/arguments.py)."""
    workload = resolved.workload
    recipe = workload.recipe
    shared = recipe.cp * recipe.tp2 * (recipe.tp if recipe.sequence_parallel else 1)
    tokens = recipe.micro_batch_size * recipe.sequences * recipe.seq_length / shared
    inputs = 2.0 * tokens * workload.model.hidden_size * workload.model.num_layers / recipe.pp
    return mask_bytes(resolved) <= inputs
