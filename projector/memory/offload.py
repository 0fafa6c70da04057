"""What host memory takes off a device: saved tensors of the first layers, or inputs of named modules of every layer."""

from __future__ import annotations

from projector.frameworks.types import Resolved
from projector.memory.activations import saved
from projector.workload.model import LayerKind
from projector.workload.recipe import Recipe

__all__ = ["RESIDENT", "module_bytes", "moved", "taken"]

RESIDENT = 2
"""Layers whose offloaded tensors are on the device at a time: the one that computes and the one on its way
(TransformerEngine pytorch/cpu_offload.py, double buffers)."""

# The saved tensors that are the input of each module (Megatron-LM core/pipeline_parallel/fine_grained_activation_offload.py)
_INPUTS = {
    "attn_norm": ("attention_norm_in",),
    "qkv_linear": ("attention_norm_out",),
    "core_attn": ("q", "k", "v"),
    "attn_proj": ("attention_out",),
    "mlp_norm": ("mlp_norm_in",),
    "expert_fc1": ("expert_input",),
    "moe_act": ("expert_fc1_out",),
    "fused_group_mlp": ("expert_input",),
}
_SMALLEST = 2.0**20  # elements: smaller tensors stay


def moved(recipe: Recipe) -> bool:
    """Whether optimizer states only live on the host: the device updates. Megatron-LM's layer-wise (Muon) optimizers
    mean this by ``optimizer_cpu_offload``."""
    muon = recipe.optimizer in ("muon", "dist_muon") and bool(recipe.optimizer_cpu_offload)
    return bool(recipe.offload_optimizer_states) or muon


def module_bytes(resolved: Resolved, kind: LayerKind) -> float:
    """Bytes of one layer that ``offload_modules`` takes to the host."""
    recipe, tensors = resolved.workload.recipe, saved(resolved, kind)
    if recipe.recompute_granularity == "full":
        return 0.0
    element = 4.0 if recipe.precision == "fp32" else 2.0
    names = {name for module in recipe.offload_modules or () for name in _INPUTS[module]}
    sizes = (tensors.get(name, 0.0) for name in names)
    return sum(size for size in sizes if size >= _SMALLEST * element)


def taken(resolved: Resolved, kind: LayerKind, position: int, everything: float) -> float:
    """Bytes of the layer at ``position`` of its stage, of the ``everything`` that it saves, that go to the host."""
    if position < (resolved.workload.recipe.cpu_offloading_num_layers or 0):
        return everything
    return module_bytes(resolved, kind)
