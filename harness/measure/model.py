"""One virtual pipeline stage of a model as a torch module, with weights that depend on their names alone."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor, nn

from harness.measure.experts import Experts, Routed
from harness.measure.layers import Attention, LatentAttention, Linear, Mlp, Norm
from projector.workload.layout import Chunk
from projector.workload.model import Model
from projector.workload.workload import Workload

__all__ = ["Stage", "initialise"]

_STANDARD = 0.02  # deviation of initial weights (Megatron-LM --init-method-std)


class Layer(nn.Module):
    """One decoder layer with its norms before attention and feed-forward."""

    def __init__(self, workload: Workload, number: int, experts: Any) -> None:
        super().__init__()
        model, recipe = workload.model, workload.recipe
        self.before = Norm(model.hidden_size, model.normalization)
        self.between = Norm(model.hidden_size, model.normalization)
        length = recipe.seq_length
        self.attention = LatentAttention(model, model.mla, length) if model.mla else Attention(model, length)
        even = bool(recipe.moe_router_force_load_balancing)
        routed = model.moe is not None and model.layer_kinds[number].moe
        self.mlp: nn.Module = (
            Routed(model, model.moe, experts, even) if routed and model.moe else Mlp(model, model.ffn_hidden_size)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        made: Tensor = x + self.mlp(self.between(x))
        return made


class Stage(nn.Module):
    """The part of the model that ``chunk`` says: token numbers [batch, length] or hidden states in; hidden states or
    logits (of the rank's part of the vocabulary) out. ``experts``: the expert-parallel group."""

    def __init__(self, workload: Workload, chunk: Chunk, experts: Any = None) -> None:
        super().__init__()
        model = workload.model
        self.dtype = torch.bfloat16 if workload.recipe.precision == "bf16" else torch.float32
        vocabulary, hidden = workload.padded_vocab_size, model.hidden_size
        self.embedding = nn.Embedding(vocabulary, hidden) if chunk.embedding else None
        learned = chunk.embedding and model.position_embedding_type == "learned_absolute"
        self.positions = nn.Embedding(_positions(model, workload.recipe.seq_length), hidden) if learned else None
        self.layers = nn.ModuleDict({str(i): Layer(workload, i, experts) for i in chunk.layers})
        self.norm = Norm(hidden, model.normalization) if chunk.head else None
        self.output = Linear(hidden, vocabulary, False) if chunk.head else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            places = None if self.positions is None else torch.arange(x.shape[1], device=x.device)
            x = self.embedding(x)
            if places is not None and self.positions is not None:
                x = x + self.positions(places)
            x = x.to(self.dtype)
        for layer in self.layers.values():
            x = layer(x)
        if self.norm is not None and self.output is not None:
            x = self.output(self.norm(x))
        return x


def initialise(stage: Stage, tied: bool, seed: int) -> None:
    """Random weights by the name of each parameter (experts by their number), so that any split of a model starts alike.

    ``tied``: the output layer starts as the embedding.
    """
    modules = dict(stage.named_modules())
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            owner = modules[name.rpartition(".")[0]]
            if isinstance(owner, Norm):
                continue
            if isinstance(owner, Experts):
                for i in range(parameter.shape[0]):
                    parameter[i].copy_(_drawn(f"{name}.{owner.first + i}", parameter[i].shape, seed))
            elif name.endswith(".bias"):
                parameter.zero_()
            else:
                parameter.copy_(
                    _drawn("embedding.weight" if tied and name == "output.weight" else name, parameter.shape, seed)
                )


def _drawn(name: str, shape: torch.Size, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ seed)
    return torch.randn(shape, generator=generator) * _STANDARD


def _positions(model: Model, length: int) -> int:
    return max(model.max_position_embeddings or 0, length)
