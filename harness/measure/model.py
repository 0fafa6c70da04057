"""One virtual pipeline stage of a model as a torch module, with weights that depend on their names alone."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor, nn

from projector.benchmark.layers_decoder import DecoderLayer, Embedding, Head
from projector.benchmark.layers_moe import Routed
from projector.benchmark.layers_parts import Made, Norm
from projector.workload.layout import Chunk

_STANDARD = 0.02  # deviation of initial weights (Megatron-LM --init-method-std)


class Stage(nn.Module):
    """The part of the model that ``chunk`` says: token numbers [batch, length] or hidden states [tokens, hidden] in; hidden
    states or logits [tokens, own part of the vocabulary] out."""

    def __init__(self, made: Made, chunk: Chunk) -> None:
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
    """Random weights by the name of each parameter (experts by their number), so that any split of a model starts alike.

    ``tied``: the output layer starts as the embedding.
    """
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
                drawn = "embedding.table.weight" if tied and name == "head.output.weight" else name
                parameter.copy_(_drawn(drawn, parameter.shape, seed))


def _drawn(name: str, shape: torch.Size, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ seed)
    return torch.randn(shape, generator=generator) * _STANDARD
