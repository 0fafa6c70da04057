"""Ranks and their groups as Megatron-LM numbers them (tp innermost, then dp, pp outermost), and tensor parallelism."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from harness.measure.model import Stage
from projector.benchmark import layers_dtensor, layers_parallel
from projector.benchmark.layers_attention import Attention
from projector.benchmark.layers_parallel import Group, joined
from projector.dataclass import dataclass
from projector.workload.workload import Workload


@dataclass(frozen=True)
class Ranks:
    """This process's place. A group is None where it has one rank; ``ends``: first and last stage of its pipeline;
    ``whole``: those by which layers are made, tensor parallelism comes after."""

    mesh: DeviceMesh
    tp: Any
    dp: Any
    pp: Any
    edp: Any
    ends: Any
    whole: layers_parallel.Ranks
    pp_rank: int
    dp_rank: int
    dp_size: int


def place(workload: Workload, kind: str) -> Ranks:
    """Makes every group of the recipe; all processes call it. ``kind``: ``cpu`` or ``cuda``."""
    recipe, dp = workload.recipe, workload.dp
    mesh = init_device_mesh(kind, (recipe.pp, dp, recipe.tp), mesh_dim_names=("pp", "dp", "tp"))
    numbers = torch.arange(workload.gpus).view(recipe.pp, dp // recipe.ep, recipe.ep, recipe.tp)
    sizes = {"pp": recipe.pp, "dp": dp, "tp": recipe.tp}
    groups = {name: mesh[name].get_group() if size > 1 else None for name, size in sizes.items()}
    ends = numbers.flatten(1).T[:, [0, -1]] if recipe.pp > 1 else numbers[:0]
    return Ranks(
        mesh=mesh,
        **groups,
        whole=layers_parallel.Ranks(ep=_lines(numbers, 2) if recipe.ep > 1 else Group()),
        edp=_lines(numbers, 1).handle if recipe.ep > 1 else groups["dp"],
        ends=joined(ends.tolist()).handle,
        pp_rank=mesh.get_local_rank("pp"),
        dp_rank=mesh.get_local_rank("dp"),
        dp_size=dp,
    )


def _lines(numbers: Tensor, axis: int) -> Group:
    """The group along ``axis`` of the ranks' ``numbers``."""
    return joined(numbers.movedim(axis, -1).flatten(0, -2).tolist())


def split(stage: Stage, ranks: Ranks) -> list[nn.Parameter]:
    """Tensor parallelism by DTensor. Returns the weights that every rank holds whole but feeds with its own heads alone:
    their gradients are to be summed."""
    if ranks.tp is None:
        return []
    layers_dtensor.split(stage, ranks.mesh["tp"])
    attentions = [module for module in stage.modules() if isinstance(module, Attention)]
    return [weight for each in attentions for norm in (each.q_norm, each.k_norm) for weight in norm.parameters()]
