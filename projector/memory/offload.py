"""Bytes that host memory takes off a device: saved tensors of the first layers, or inputs of named modules of every
layer."""

from __future__ import annotations

from projector.operators.module import Block
from projector.parameter import parameter
from projector.workload.recipe import Recipe

#: Layers whose offloaded tensors are on the device at a time: the one that computes and the one on its way.
RESIDENT = parameter(2, kind="published", source="TransformerEngine pytorch/cpu_offload.py, double buffers")

_SMALLEST = 2.0**20  # elements: smaller tensors stay


def states_on_host(recipe: Recipe) -> bool:
    """Returns whether optimizer states only live on the host: the device updates. Megatron-LM's layer-wise (Muon)
    optimizers mean this by ``optimizer_cpu_offload``."""
    muon = recipe.optimizer in ("muon", "dist_muon") and bool(recipe.optimizer_cpu_offload)
    return bool(recipe.offload_optimizer_states) or muon


def module_bytes(recipe: Recipe, layer: Block) -> float:
    """Returns the bytes of one layer that ``offload_modules`` takes to the host: inputs of the named modules
    (Megatron-LM core/pipeline_parallel/fine_grained_activation_offload.py)."""
    if recipe.recompute_granularity == "full":
        return 0.0
    least = _SMALLEST * (4.0 if recipe.precision == "fp32" else 2.0)
    return sum(each.bytes for each in layer.offloadable if each.bytes >= least)


def offloaded_bytes(recipe: Recipe, layer: Block, position: int) -> float:
    """Returns the bytes of the layer at ``position`` of its stage that go to the host."""
    if position < (recipe.cpu_offloading_num_layers or 0):
        return layer.kept_bytes if recipe.recompute_granularity != "full" else layer.saved_bytes
    return module_bytes(recipe, layer)
