"""Applies tensor parallelism and FSDP2 as torch does: to whole modules, whose weights become shards.

Sums are those of the manual layers; what differs is the host, which dispatches every operator on such a weight
(torch/distributed/tensor/_dispatch.py). Residuals are replicated: without sequence parallelism.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

from projector.benchmark.layers_attention import Attention, LatentAttention
from projector.benchmark.layers_decoder import Embedding, Head
from projector.benchmark.layers_parallel import Group
from projector.benchmark.layers_parts import FeedForward, LayerSetup


def used(made: LayerSetup) -> bool:
    """Returns whether the run's framework splits modules into sharded tensors."""
    ranks = made.ranks
    shared = ranks.tp.handle is not None  # also by one rank, which stands for the run's
    return made.execution.tensor_parallel.sharded_tensors and shared and not ranks.sequence_parallel


def whole(made: LayerSetup) -> LayerSetup:
    """Returns how modules are made before they are split: with all of their heads and widths."""
    return replace(made, ranks=replace(made.ranks, tp=Group()))


def split(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Splits the heads, widths and vocabulary of ``module`` over the ranks of ``mesh``, and returns it."""
    plan: dict[str, Any] = {}
    group = Group(mesh.size(), mesh.get_local_rank(), mesh.get_group())
    for name, part in module.named_modules():
        inside = f"{name}." if name else ""
        if isinstance(part, Attention | LatentAttention | FeedForward):
            columns = ["fc1", *(["gate"] if getattr(part, "gate", None) is not None else [])]
            if isinstance(part, Attention):
                columns = [f"qkv.{i}" for i in range(len(part.qkv))]
            elif isinstance(part, LatentAttention):
                columns = ["q_up", "kv_up"]
            plan |= {f"{inside}{key}": ColwiseParallel() for key in columns}
            plan[f"{inside}{'fc2' if isinstance(part, FeedForward) else 'proj'}"] = RowwiseParallel()
            if isinstance(part, Attention):
                part.rank = group.rank  # its heads' place among all
            if isinstance(part, LatentAttention):  # whole products see its input
                part.key_group = group
            elif name:
                plan[name] = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
        elif isinstance(part, Embedding):
            plan[f"{inside}table"] = RowwiseParallel(input_layouts=Replicate())
        elif isinstance(part, Head):
            plan[f"{inside}output"] = ColwiseParallel(output_layouts=Shard(-1))
            part.group = group
    parallelize_module(module, mesh, plan)
    return module


def shard(module: nn.Module, layers: Iterable[nn.Module], made: LayerSetup, mesh: DeviceMesh) -> None:
    """Applies FSDP2 over ``mesh``: every layer is a unit, the rest another (pytorch/torchtitan parallelize.py). Weights
    are gathered in the type of products, gradients reduced in that of the framework."""
    wide = made.execution.data_parallel.reduce_bytes >= torch.float32.itemsize
    policy = MixedPrecisionPolicy(made.dtype, torch.float32 if wide else made.dtype, cast_forward_inputs=False)
    for unit in (*layers, module):
        fully_shard(unit, mesh=mesh, mp_policy=policy)


@cache
def mesh_of(kind: str, group: Any) -> DeviceMesh:
    """Returns the ranks of a process ``group`` on devices of ``kind`` as a mesh."""
    return DeviceMesh.from_group(group, kind)
