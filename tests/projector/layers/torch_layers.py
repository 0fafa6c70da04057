"""Small layers in plain torch, written from the papers alone: what the book of layers is held against."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from projector.workload import layer_kinds, sparse
from projector.workload.model import LayerKind, Model
from tests.projector.layers.torch_norms import Attention, LatentAttention, ReusingAttention, RMSNorm, norm
from tests.projector.layers.torch_recurrent import DeltaMixer, Mamba1Mixer, Mamba2Mixer
from tests.projector.layers.torch_sparse import BlockAttention, ChosenLatent, CompressedAttention, NativeSparseAttention

__all__ = ["Attention", "Experts", "FeedForward", "Head", "Layer", "Prediction", "RMSNorm", "ReusingAttention"]


class HyperConnection(nn.Module):
    """n streams to one and back (arXiv:2512.24880, section 4)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.n = n = model.hyper_connections
        self.map = nn.Linear(n * model.hidden_size, n * n + 2 * n)
        self.scales = nn.Parameter(torch.ones(3))

    def forward(self, streams: Tensor, layer: Any) -> Tensor:
        n = self.n
        found = self.map(functional.rms_norm(streams.flatten(-2), (streams[0, 0].numel(),))) * self.scales.mean()
        pre, post, mix = found.split([n, n, n * n], -1)
        out = layer((streams * pre.sigmoid()[..., None]).sum(-2))
        mixed = (mix.unflatten(-1, (n, n)).softmax(-1)[..., None] * streams[..., None, :, :]).sum(-2)
        return mixed + 2 * post.sigmoid()[..., None] * out[..., None, :]


class FeedForward(nn.Module):
    """SwiGLU (arXiv:2002.05202) or, ungated, GELU."""

    def __init__(self, model: Model, width: int) -> None:
        super().__init__()
        h, bias = model.hidden_size, model.add_bias_linear
        self.gate = nn.Linear(h, width, bias) if model.gated_linear_unit else None
        self.up, self.down = nn.Linear(h, width, bias), nn.Linear(width, h, bias)

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """``weight``: the router's probability of each row, on the activation."""
        up = self.up(x)
        act = functional.gelu(up) if self.gate is None else functional.silu(self.gate(x)) * up
        return self.down(act if weight is None else act * weight)


class Experts(nn.Module):
    """Top-k softmax routing to SwiGLU experts one after the other, beside a shared expert (arXiv:2401.06066)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        moe = model.moe
        assert moe is not None
        self.k = moe.moe_router_topk
        self.router = nn.Linear(model.hidden_size, moe.num_experts, False)
        self.experts = nn.ModuleList(FeedForward(model, moe.moe_ffn_hidden_size) for _ in range(moe.num_experts))
        width = moe.moe_shared_expert_intermediate_size
        self.shared = FeedForward(model, width) if width else None
        self.gate = nn.Linear(model.hidden_size, 1, False) if moe.moe_shared_expert_gate else None

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        scores, chosen = self.router(flat).float().softmax(-1).topk(self.k, -1)
        order = chosen.flatten().argsort()
        rows = flat[order // self.k]  # one permuted copy, of which each expert reads its part
        sizes = torch.bincount(chosen.flatten(), minlength=len(self.experts)).tolist()
        weights = scores.to(x.dtype).flatten()[order, None].split(sizes)
        out = torch.cat([each(*part) for each, *part in zip(self.experts, rows.split(sizes), weights, strict=True)])
        total = out[order.argsort()].unflatten(0, (-1, self.k)).sum(1)
        if self.shared is not None:
            more = self.shared(flat)
            total = total + (more * self.gate(flat).sigmoid() if self.gate is not None else more)
        return total.view_as(x)


class Parallel(nn.Module):
    """Attention and Mamba-2 on one input, their outputs summed (arXiv:2507.22448)."""

    def __init__(self, model: Model, m: layer_kinds.Parallel) -> None:
        super().__init__()
        self.attention, self.mamba = Attention(model), Mamba2Mixer(model, m.mamba)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x) + self.mamba(x)  # type: ignore[no-any-return]


_RECURRENT: dict[type, Any] = {
    layer_kinds.Mamba1: Mamba1Mixer,
    layer_kinds.Mamba2: Mamba2Mixer,
    layer_kinds.KimiDelta: DeltaMixer,
    layer_kinds.Parallel: Parallel,
}


def mixer(model: Model, kind: LayerKind) -> nn.Module:
    if isinstance(kind.mixer, sparse.CompressedAttention):
        return CompressedAttention(model, kind.mixer.ratio)
    if isinstance(kind.mixer, sparse.BlockAttention):
        return NativeSparseAttention(model) if kind.mixer.compressed else BlockAttention(model)
    if type(kind.mixer) in _RECURRENT:
        return _RECURRENT[type(kind.mixer)](model, kind.mixer)  # type: ignore[no-any-return]
    if model.indexer is not None:
        return ChosenLatent(model)
    return LatentAttention(model) if model.mla else Attention(model)


class Layer(nn.Module):
    """One decoder layer on [batch, sequence, hidden]."""

    def __init__(self, model: Model, kind: LayerKind) -> None:
        super().__init__()
        h = model.hidden_size
        self.beside = model.parallel_residual
        self.first, self.second = norm(model, h), nn.Identity() if self.beside else norm(model, h)
        self.attention = mixer(model, kind)
        streams = [HyperConnection(model), HyperConnection(model)] if model.hyper_connections else []
        self.streams = nn.ModuleList(streams)
        self.mlp = Experts(model) if kind.moe else FeedForward(model, model.ffn_hidden_size)
        self.after = nn.ModuleList([norm(model, h), norm(model, h)]) if model.sandwich_norm else None

    def forward(self, x: Tensor) -> Tensor:
        if self.streams:
            x = x[..., None, :].expand(-1, -1, self.streams[0].n, -1)
            x = self.streams[0](x, lambda one: self.attention(self.first(one)))
            return self.streams[1](x, lambda one: self.mlp(self.second(one)))
        if self.beside:
            one = self.first(x)
            return x + self.attention(one) + self.mlp(one)
        out = self.attention(self.first(x))
        x = x + (self.after[0](out) if self.after else out)
        out = self.mlp(self.second(x))
        return x + (self.after[1](out) if self.after else out)


class Head(nn.Module):
    """Final norm, output layer, cross-entropy in fp32."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = norm(model, model.hidden_size)
        self.output = nn.Linear(model.hidden_size, model.vocab_size, False)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.output(self.norm(x)).float().flatten(0, -2)
        return functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


class Prediction(nn.Module):
    """One depth of multi-token prediction without its output layer (arXiv:2412.19437, section 2.2)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        h = model.hidden_size
        self.embedding = nn.Embedding(model.vocab_size, h)
        self.hidden, self.ahead = norm(model, h), norm(model, h)
        self.project = nn.Linear(2 * h, h, False)
        self.layer = Layer(model, model.layer_kinds[-1])

    def forward(self, x: Tensor) -> Tensor:
        ahead = self.embedding(torch.zeros(x.shape[:2], dtype=torch.long))
        return self.layer(self.project(torch.cat((self.ahead(ahead), self.hidden(x)), -1)))
