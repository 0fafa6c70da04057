"""What is executed again in the backward of a layer whose activations were not kept.

NVIDIA/Megatron-LM@d98e8a64dd core/transformer/transformer_config.py and core/recompute.py. A replay is the forward
again: collectives, expert exchange and host synchronisation included.
"""

from __future__ import annotations

from projector.operators.part import Part, forward_of
from projector.operators.types import Attention, Collective, Gemm, GroupedGemm, HostWork, Operator
from projector.workload.recipe import Recipe

__all__ = ["replay"]

# Last operators of a layer whose result only the layer's output needs. A compiler that sees the replay and the backward as
# one program drops them from the replay (JAX jax.checkpoint: the recomputation is traced, then cleared of dead code).
_OUTPUT_ONLY = frozenset({"fc2", "shared.fc2", "shared.add", "moe.mask_out", "moe.unpermute", "mlp_residual"})

# a full checkpoint saves and restores the random state of host and device (estimate from torch's calls)
_RANDOM_STATE = HostWork(name="recompute.random_state", microseconds=30.0)


def replay(parts: tuple[Part, ...], recipe: Recipe, pruned: bool = False) -> tuple[Operator, ...]:
    """Operators replayed for a recomputed layer: all of it (``full``) or the parts named by ``recompute_modules``.

    ``pruned``: a whole-layer replay leaves out what only the layer's own output needs.
    """
    if recipe.recompute_granularity == "full":
        if pruned:
            return tuple(op for op in forward_of(parts) if op.name not in _OUTPUT_ONLY)
        return (_RANDOM_STATE, *forward_of(parts))
    if recipe.recompute_granularity != "selective":
        return ()
    modules = frozenset(recipe.recompute_modules or ("core_attn",))
    if "op_sac" in modules:
        return _all_but_every_other_product(forward_of(parts))
    return forward_of(part for part in parts if part.tags & modules)


def _all_but_every_other_product(forward: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """torchtitan's operator-selective checkpoint: attention, communication and every second matrix product are kept.

    pytorch/torchtitan@b5bcd76c torchtitan/distributed/activation_checkpoint.py
    """
    replayed: list[Operator] = []
    products = 0
    for op in forward:
        if isinstance(op, Gemm | GroupedGemm):
            products += 1
            if products % 2 == 0:
                replayed.append(op)
        elif not isinstance(op, Attention | Collective | HostWork):
            replayed.append(op)
    return tuple(replayed)
