"""What is executed again in the backward of a layer whose activations were not kept.

NVIDIA/Megatron-LM@d98e8a64dd core/transformer/transformer_config.py and core/recompute.py. A replay is the forward
again: collectives, expert exchange and host synchronisation included.
"""

from __future__ import annotations

from projector.layers.part import Part, forward_of
from projector.layers.types import Attention, Collective, Gemm, GroupedGemm, HostWork, Operator
from projector.workload.recipe import Recipe

__all__ = ["replay"]

# Last operators of a layer whose result only the layer's output needs. A compiler that sees the replay and the backward as
# one program drops them from the replay (JAX jax.checkpoint: the recomputation is traced, then cleared of dead code).
_OUTPUT_ONLY = frozenset({"fc2", "shared.fc2", "shared.add", "moe.mask_out", "moe.unpermute", "mlp_residual"})

# a full checkpoint saves and restores the random state of host and device (estimate from torch's calls)
_RANDOM_STATE = HostWork(name="recompute.random_state", microseconds=30.0)

# Compute of a layer that ends in an output of each name (JAX checkpoint_name in AI-Hypercomputer/maxtext
# MaxText/layers/{attentions,linears,moe}.py; queries and keys are named after their rotation).
_NAMED = {
    "qkv_proj": ("qkv", "q_up", "kv_up", "rope"),
    "out_proj": ("proj",),
    "mlpwi": ("fc1", "experts.fc1", "shared.fc1"),
    "mlpwo": ("fc2", "experts.fc2", "shared.fc2"),
    "context": ("core_attn",),
}


def replay(parts: tuple[Part, ...], recipe: Recipe, pruned: bool = False) -> tuple[Operator, ...]:
    """Operators replayed for a recomputed layer: all of it (``full``) or the parts named by ``recompute_modules``.

    ``pruned``: a whole-layer replay leaves out what only the layer's own output needs. ``recompute_saved`` names outputs
    that were kept in a layer that is otherwise replayed whole: what ends in them is not computed again, what leads to
    their inputs is, since weight gradients need those.
    """
    if recipe.recompute_granularity == "full":
        kept = tuple(op for op in forward_of(parts) if not _saved(op, recipe.recompute_saved or ()))
        if pruned:
            return tuple(op for op in kept if op.name not in _OUTPUT_ONLY)
        return (_RANDOM_STATE, *kept)
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


def _saved(op: Operator, names: tuple[str, ...]) -> bool:
    if isinstance(op, Collective | HostWork):
        return False
    return any(op.name == stem or op.name.startswith(f"{stem}.") for name in names for stem in _NAMED[name])
