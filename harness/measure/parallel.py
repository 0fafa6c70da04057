"""Ranks and their groups as Megatron-LM numbers them (tp innermost, then dp, pp outermost), and tensor parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from harness.measure.layers import Attention, LatentAttention
from harness.measure.model import Stage
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


class _Summed(torch.autograd.Function):
    """Identity whose gradient is summed over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        made = grads[0].contiguous().clone()
        dist.all_reduce(made, group=ctx.group)
        return made, None


class _Copy(nn.Module):
    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        function: Any = _Summed
        made: Tensor = function.apply(x, self.group)
        return made


def split(stage: Stage, ranks: Ranks) -> list[nn.Parameter]:
    """Tensor parallelism by DTensor: heads, widths and vocabulary over the ranks of ``tp``.

    Returns the weights that every rank holds whole but feeds with its own heads alone: their gradients are to be summed.
    """
    if ranks.tp is None:
        return []
    mesh = ranks.mesh["tp"]
    plan: dict[str, Any] = {}
    partial: list[nn.Parameter] = []
    for name, module in stage.named_modules():
        if isinstance(module, Attention):
            plan[name] = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
            plan |= {f"{name}.{part}": ColwiseParallel() for part in ("q", "k", "v")}
            plan[f"{name}.out"] = RowwiseParallel()
            norms = [norm for norm in (module.q_norm, module.k_norm) if norm is not None]
            partial += [weight for norm in norms for weight in norm.parameters()]
        elif isinstance(module, LatentAttention):
            plan |= {f"{name}.{part}": ColwiseParallel() for part in ("q", "kv")}
            plan[f"{name}.out"] = RowwiseParallel()
            module.shared = _Copy(ranks.tp)
        elif name.endswith(".mlp"):
            plan[name] = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
            plan |= {
                f"{name}.{part}": ColwiseParallel() for part in ("gate", "up") if getattr(module, part) is not None
            }
            plan[f"{name}.down"] = RowwiseParallel()
    if stage.embedding is not None:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate())
    if stage.output is not None:
        plan["output"] = ColwiseParallel(output_layouts=Shard(-1))
    parallelize_module(stage, mesh, plan)
    return partial
