"""Builds one virtual pipeline stage of a model as a torch module, with weights that depend on their names alone."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from projector.benchmark import layers_dtensor, layers_parallel
from projector.benchmark.layers_attention import Attention
from projector.benchmark.layers_decoder import DecoderLayer, Embedding, Head
from projector.benchmark.layers_moe import Routed
from projector.benchmark.layers_parallel import Group, joined
from projector.benchmark.layers_parts import LayerSetup, Norm
from projector.dataclass import dataclass
from projector.workload.layout import Chunk
from projector.workload.workload import Workload

_STANDARD = 0.02  # standard deviation of initial weights (Megatron-LM --init-method-std)


class Stage(nn.Module):
    """The part of the model that ``chunk`` names. Input: token numbers [batch, length] or hidden states [tokens,
    hidden]; output: hidden states or logits [tokens, own part of the vocabulary]."""

    def __init__(self, made: LayerSetup, chunk: Chunk) -> None:
        super().__init__()
        self.embedding = Embedding(made) if chunk.embedding else None
        self.layers = nn.ModuleDict({str(i): DecoderLayer(made, made.model.layer_kinds[i]) for i in chunk.layers})
        self.head = Head(made) if chunk.head else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None else self.head.logits(x)


def initialise(stage: Stage, tied: bool, seed: int) -> None:
    """Sets random weights by the name of each parameter (experts by their number), so that any split of a model starts
    alike. ``tied``: the output layer starts as the embedding."""
    modules = dict(stage.named_modules())
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            owner = modules[name.rpartition(".")[0]]
            routed = modules.get(name.rpartition(".experts.")[0])
            if isinstance(owner, Norm):
                continue
            if isinstance(routed, Routed) and ".experts." in name:
                for i in range(parameter.shape[0]):
                    parameter[i].copy_(_drawn(f"{name}.{routed.first + i}", parameter[i].shape, seed))
            elif name.endswith(".bias"):
                parameter.zero_()
            else:
                source = "embedding.table.weight" if tied and name == "head.output.weight" else name
                parameter.copy_(_drawn(source, parameter.shape, seed))


def _drawn(name: str, shape: torch.Size, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ seed)
    return torch.randn(shape, generator=generator) * _STANDARD


@dataclass(frozen=True)
class Ranks:
    """The place of this process among ranks, which Megatron-LM numbers tp innermost, then dp, pp outermost. A group is
    None where it has one rank; ``ends``: first and last stage of its pipeline; ``whole``: the ranks for which layers are
    made before tensor parallelism splits them."""

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
        whole=layers_parallel.Ranks(ep=_group_along(numbers, 2) if recipe.ep > 1 else Group()),
        edp=_group_along(numbers, 1).handle if recipe.ep > 1 else groups["dp"],
        ends=joined(ends.tolist()).handle,
        pp_rank=mesh.get_local_rank("pp"),
        dp_rank=mesh.get_local_rank("dp"),
        dp_size=dp,
    )


def _group_along(numbers: Tensor, axis: int) -> Group:
    """Returns the group along ``axis`` of the ranks' ``numbers``."""
    return joined(numbers.movedim(axis, -1).flatten(0, -2).tolist())


def split(stage: Stage, ranks: Ranks) -> list[nn.Parameter]:
    """Applies tensor parallelism by DTensor. Returns the weights that every rank holds whole but feeds with its own
    heads alone: their gradients are to be summed."""
    if ranks.tp is None:
        return []
    layers_dtensor.split(stage, ranks.mesh["tp"])
    attentions = [module for module in stage.modules() if isinstance(module, Attention)]
    return [weight for a in attentions for norm in (a.q_norm, a.k_norm) for weight in norm.parameters()]
