"""Ranks and their groups as Megatron-LM numbers them (tp innermost, then dp, pp outermost), and tensor parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from harness.measure.model import Stage
from projector.benchmark import layers_dtensor, layers_parallel
from projector.benchmark.layers_attention import Attention
from projector.benchmark.layers_parallel import Group
from projector.workload.workload import Workload

__all__ = ["Ranks", "place", "split"]


@dataclass(frozen=True)
class Ranks:
    """This process's place. A group is None where it has one rank; ``ends``: first and last stage of its pipeline."""

    mesh: DeviceMesh
    tp: Any
    dp: Any
    pp: Any
    ep: Any
    edp: Any
    ends: Any
    pp_rank: int
    dp_rank: int
    dp_size: int

    @property
    def whole(self) -> layers_parallel.Ranks:
        """The groups by which layers are made; tensor parallelism comes after."""
        if self.ep is None:
            return layers_parallel.ALONE
        return layers_parallel.Ranks(ep=Group(dist.get_world_size(self.ep), dist.get_rank(self.ep), self.ep))


def place(workload: Workload, kind: str) -> Ranks:
    """Makes every group of the recipe; all processes call it. ``kind``: ``cpu`` or ``cuda``."""
    recipe, dp = workload.recipe, workload.dp
    mesh = init_device_mesh(kind, (recipe.pp, dp, recipe.tp), mesh_dim_names=("pp", "dp", "tp"))
    numbers = torch.arange(workload.gpus).view(recipe.pp, dp, recipe.tp)
    by_expert = numbers.view(recipe.pp, dp // recipe.ep, recipe.ep, recipe.tp) if recipe.ep > 1 else None
    ep = edp = None
    if by_expert is not None:
        ep = _own(by_expert.permute(0, 1, 3, 2).reshape(-1, recipe.ep))
        edp = _own(by_expert.permute(0, 2, 3, 1).reshape(-1, dp // recipe.ep))
    ends = _own(numbers.permute(1, 2, 0).reshape(-1, recipe.pp)[:, [0, -1]]) if recipe.pp > 1 else None
    sizes = {"pp": recipe.pp, "dp": dp, "tp": recipe.tp}
    groups = {name: mesh[name].get_group() if size > 1 else None for name, size in sizes.items()}
    return Ranks(
        mesh=mesh,
        tp=groups["tp"],
        dp=groups["dp"],
        pp=groups["pp"],
        ep=ep,
        edp=edp if recipe.ep > 1 else groups["dp"],
        ends=ends,
        pp_rank=mesh.get_local_rank("pp"),
        dp_rank=mesh.get_local_rank("dp"),
        dp_size=dp,
    )


def _own(lines: Tensor) -> Any:
    """The group of this process among ``lines`` [groups, ranks]; None where lines have one rank."""
    found = None
    for line in lines.tolist():
        if len(line) > 1:
            group = dist.new_group(line)
            found = group if dist.get_rank() in line else found
    return found


def split(stage: Stage, ranks: Ranks) -> list[nn.Parameter]:
    """Tensor parallelism by DTensor. Returns the weights that every rank holds whole but feeds with its own heads alone:
    their gradients are to be summed."""
    if ranks.tp is None:
        return []
    layers_dtensor.split(stage, ranks.mesh["tp"])
    attentions = [module for module in stage.modules() if isinstance(module, Attention)]
    return [weight for each in attentions for norm in (each.q_norm, each.k_norm) for weight in norm.parameters()]
