"""A small layer of Gemma 3n in plain torch, written from the papers alone: AltUp (arXiv:2301.13310), LAuReL
(arXiv:2411.07501), embeddings of every layer, a gate of which most is cut, keys and values of another layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from projector.workload.layer_kinds import Attention
from projector.workload.model import LayerKind, Model
from tests.projector.layers.torch_norms import RMSNorm, _Flash, rotate


class SharedAttention(nn.Module):
    """Queries, keys and values normed, the last without a weight; ``source``: whose keys and values it reads instead."""

    def __init__(self, model: Model, source: SharedAttention | None) -> None:
        super().__init__()
        h, d, n, g = model.hidden_size, model.kv_channels, model.num_attention_heads, model.num_query_groups
        self.d, self.source = d, [source]
        self.q, self.k, self.v = (nn.Linear(h, heads * d, False) for heads in (n, g, g))
        self.o = nn.Linear(n * d, h, False)
        self.q_norm, self.k_norm = RMSNorm(d), RMSNorm(d)

    def forward(self, x: Tensor) -> Tensor:
        def heads(product: nn.Module) -> Tensor:
            return product(x).unflatten(-1, (-1, self.d))  # type: ignore[no-any-return]

        q = rotate(self.q_norm(heads(self.q)).transpose(1, 2))
        if self.source[0] is None:
            v = functional.rms_norm(heads(self.v), (self.d,)).transpose(1, 2)
            self.made = rotate(self.k_norm(heads(self.k)).transpose(1, 2)), v
        else:
            self.made = self.source[0].made
        return self.o(_Flash.apply(q, *self.made).flatten(2))  # type: ignore[no-any-return]


class CutFeedForward(nn.Module):
    """A gated MLP; ``cut``: of the gate a multiple of its mean and deviation is taken, what is left below zero cut."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        h, f = model.hidden_size, model.ffn_hidden_size
        self.gate, self.up, self.down = nn.Linear(h, f, False), nn.Linear(h, f, False), nn.Linear(f, h, False)
        self.cut = model.sparse_activation

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        if self.cut:
            limit = gate.mean(-1, keepdim=True) + 1.645 * gate.std(-1, keepdim=True, unbiased=False)
            gate = functional.relu(gate - limit)
        return self.down(functional.gelu(gate) * self.up(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """On streams [n, b, s, h] and the layer's own embedding [b, s, p]."""

    def __init__(self, model: Model, kind: LayerKind, source: SharedAttention | None = None) -> None:
        super().__init__()
        assert isinstance(kind.mixer, Attention)
        model = model.within(kind)
        self.n, h, p = model.altup_num_inputs, model.hidden_size, model.hidden_size_per_layer_input
        n = self.n
        self.router_norm, self.router = RMSNorm(h), nn.Linear(h, n, False)
        self.map, self.share = nn.Linear(n, n * n, False), nn.Linear(n, n, False)
        self.scale = nn.Parameter(torch.ones(h))
        self.left = nn.Linear(h, model.laurel_rank, False)
        self.right = nn.Linear(model.laurel_rank, h, False)
        self.narrow, self.wide = nn.Linear(h, p, False), nn.Linear(p, h, False)
        self.norms = nn.ModuleList(RMSNorm(h) for _ in range(6))
        self.attention, self.mlp = SharedAttention(model, source), CutFeedForward(model)

    def modalities(self, x: Tensor) -> Tensor:
        return self.router(self.router_norm(x) * (1 / x.shape[-1])).float().tanh().to(x.dtype)  # type: ignore[no-any-return]

    def forward(self, streams: Tensor, own: Tensor) -> Tensor:
        maps = self.map(self.modalities(streams[0])).unflatten(-1, (self.n, self.n))
        predicted = (torch.matmul(streams.permute(1, 2, 3, 0), maps).permute(3, 0, 1, 2) + streams).contiguous()
        x = predicted[0]
        normed = self.norms[0](x)
        beside = normed + self.norms[1](self.right(self.left(normed)))
        x = (x + self.norms[2](self.attention(normed)) + beside) / 2**0.5
        x = x + self.norms[3](self.mlp(self.norms[4](x)))
        shares = (self.share(self.modalities(x)) + 1).permute(2, 0, 1)[..., None]
        corrected = (x - predicted[0]).repeat(self.n, 1, 1, 1) * shares + predicted
        first = functional.gelu(self.narrow(corrected[0].clone() * self.scale)) * own
        first = self.norms[5](self.wide(first))
        return torch.cat((corrected[:1], corrected[1:] + first))


class Layers(nn.Module):
    """All layers of a model on one input in every stream, each with an embedding of its own."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        made: list[Layer] = []
        for i, kind in enumerate(model.layer_kinds):
            source = model.kv_source(i)
            made.append(Layer(model, kind, None if source is None else made[source].attention))
        self.layers, self.n, self.p = nn.ModuleList(made), model.altup_num_inputs, model.hidden_size_per_layer_input

    def forward(self, x: Tensor) -> Tensor:
        streams = torch.stack([x] * self.n)
        for each in self.layers:
            streams = each(streams, torch.ones(*x.shape[:2], self.p, dtype=x.dtype, requires_grad=True))
        return streams
