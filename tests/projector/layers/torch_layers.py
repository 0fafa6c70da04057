"""Small layers in plain torch, written from the papers alone: what the book of layers is held against."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from projector.workload import sparse
from projector.workload.model import LayerKind, Model

Tensor = torch.Tensor


class _Flash(torch.autograd.Function):
    """Attention of [b, n, s, d] that saves its inputs, its output [b, s, n, d] and a log-sum-exp: two products forward,
    five backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        scores = q @ k.repeat_interleave(groups, 1).transpose(-1, -2) * q.shape[-1] ** -0.5
        out = (scores.softmax(-1) @ v.repeat_interleave(groups, 1)).transpose(1, 2).contiguous()
        ctx.save_for_backward(q, k, v, out, scores.float().logsumexp(-1))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        out, grad = out.transpose(1, 2), grad.transpose(1, 2)
        groups, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
        keys, values = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        p = (q @ keys.transpose(-1, -2) * scale - lse[..., None]).exp().to(q.dtype)
        dv = p.transpose(-1, -2) @ grad
        ds = p * (grad @ values.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True)) * scale
        dq, dk = ds @ keys, ds.transpose(-1, -2) @ q
        return dq, dk.unflatten(1, (-1, groups)).sum(2), dv.unflatten(1, (-1, groups)).sum(2)


class _RMS(torch.autograd.Function):
    """A norm in one kernel: it saves its input and one fp32 number a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        scale = x.float().square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        ctx.save_for_backward(x, scale, weight)
        return (x * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, scale, weight = ctx.saved_tensors
        normed, inner = x * scale, grad * weight
        dx = scale * (inner - normed * (inner * normed).mean(-1, keepdim=True))
        return dx.to(x.dtype), (grad * normed).flatten(0, -2).sum(0).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return _RMS.apply(x, self.weight)  # type: ignore[no-any-return]


def norm(model: Model, width: int) -> nn.Module:
    return nn.LayerNorm(width) if model.normalization == "LayerNorm" else RMSNorm(width)


class _Rotate(torch.autograd.Function):
    """Pairs of [b, n, s, d] turned in one kernel: it saves nothing, the angles are the whole model's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _turned(x, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _turned(grad, -1.0)


def _turned(x: Tensor, sign: float) -> Tensor:
    s, d = x.shape[-2:]
    angle = sign * torch.arange(s)[:, None] * 1e4 ** (-torch.arange(0, d, 2) / d)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _rotate(x: Tensor) -> Tensor:
    return _Rotate.apply(x)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Grouped-query attention (arXiv:2305.13245)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        h, d, n, g = model.hidden_size, model.kv_channels, model.num_attention_heads, model.num_query_groups
        bias = model.add_bias_linear or model.add_qkv_bias
        self.d = d
        self.q, self.k = nn.Linear(h, n * d, bias), nn.Linear(h, g * d, bias)
        self.v = self.k if model.attention_k_eq_v else nn.Linear(h, g * d, bias)
        self.o = nn.Linear(n * d, h, model.add_bias_linear)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (each(x).unflatten(-1, (-1, self.d)).transpose(1, 2) for each in (self.q, self.k))
        v = k if self.v is self.k else self.v(x).unflatten(-1, (-1, self.d)).transpose(1, 2)
        return self.o(_Flash.apply(_rotate(q), _rotate(k), v).flatten(2))


class LatentAttention(nn.Module):
    """Multi-head latent attention, keys and values expanded (arXiv:2405.04434, section 2.1)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        mla, h, n = model.mla, model.hidden_size, model.num_attention_heads
        assert mla is not None
        self.mla, self.n, qk = mla, n, mla.qk_head_dim + mla.qk_pos_emb_head_dim
        rank = mla.q_lora_rank or h
        self.q_down = nn.Sequential(nn.Linear(h, rank, False), norm(model, rank)) if mla.q_lora_rank else nn.Identity()
        self.q = nn.Linear(rank, n * qk, False)
        self.kv_down = nn.Linear(h, mla.kv_lora_rank + mla.qk_pos_emb_head_dim, False)
        self.kv_norm = norm(model, mla.kv_lora_rank)
        self.kv_up = nn.Linear(mla.kv_lora_rank, n * (mla.qk_head_dim + mla.v_head_dim), False)
        self.gate = nn.Linear(h, n * mla.v_head_dim, False) if mla.mla_use_output_gate else None
        self.o = nn.Linear(n * mla.v_head_dim, h, False)

    def forward(self, x: Tensor) -> Tensor:
        mla, n = self.mla, self.n
        q = self.q(self.q_down(x)).unflatten(-1, (n, -1)).transpose(1, 2)
        plain, turned = q.split([mla.qk_head_dim, mla.qk_pos_emb_head_dim], -1)
        q = torch.cat((plain, _rotate(turned)), -1)
        latent, position = self.kv_down(x).split([mla.kv_lora_rank, mla.qk_pos_emb_head_dim], -1)
        kv = self.kv_up(self.kv_norm(latent.contiguous())).unflatten(-1, (n, -1)).transpose(1, 2)
        k, v = kv.split([mla.qk_head_dim, mla.v_head_dim], -1)
        k = torch.cat((k, _rotate(position[:, None]).expand(-1, n, -1, -1)), -1)
        out = _Flash.apply(q, k, v.contiguous()).flatten(2)
        return self.o(out if self.gate is None else out * self.gate(x).sigmoid())


class _Chosen(torch.autograd.Function):
    """Attention of [b, s, n, d] to keys [b, m, d] that each query chooses, [s, k]; values are their first ``v`` elements."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, keys: Tensor, chosen: Tensor, v: int) -> Tensor:
        own = keys[:, chosen]
        scores = q @ own.transpose(-1, -2) * q.shape[-1] ** -0.5
        out, ctx.v = scores.softmax(-1) @ own[..., :v], v
        ctx.save_for_backward(q, keys, chosen, out, scores.float().logsumexp(-1))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, keys, chosen, out, lse = ctx.saved_tensors
        own, scale = keys[:, chosen], q.shape[-1] ** -0.5
        p = (q @ own.transpose(-1, -2) * scale - lse[..., None]).exp().to(q.dtype)
        ds = p * (grad @ own[..., : ctx.v].transpose(-1, -2) - (grad * out).sum(-1, keepdim=True)) * scale
        both = ds.transpose(-1, -2) @ q
        both[..., : ctx.v] += p.transpose(-1, -2) @ grad
        made = torch.zeros_like(keys).index_add(1, chosen.flatten(), both.flatten(1, 2))
        return ds @ own, made, None, None


class Compressor(nn.Module):
    """Blocks of ``ratio`` tokens pooled by a softmax over gates; a short block takes the one before it along."""

    def __init__(self, model: Model, ratio: int, width: int) -> None:
        super().__init__()
        self.ratio, self.width, self.overlap = ratio, width, 2 if ratio < 128 else 1
        self.both = nn.Linear(model.hidden_size, 2 * self.overlap * width, False)
        self.positions = nn.Parameter(torch.zeros(ratio, self.overlap * width))
        self.norm = norm(model, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(_Pool.apply(self.both(x), self.positions, self.ratio, self.width, self.overlap))


class _Pool(torch.autograd.Function):
    """In one kernel, which saves its input."""

    @staticmethod
    def forward(ctx: Any, both: Tensor, positions: Tensor, ratio: int, width: int, overlap: int) -> Tensor:
        ctx.save_for_backward(both, positions)
        ctx.sizes = ratio, width, overlap
        return _pooled(both, positions, ratio, width, overlap)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with torch.enable_grad():
            both, positions = (each.detach().requires_grad_() for each in ctx.saved_tensors)
            found = torch.autograd.grad(_pooled(both, positions, *ctx.sizes), (both, positions), grad)
        return (*found, None, None, None)


def _pooled(both: Tensor, positions: Tensor, ratio: int, width: int, overlap: int) -> Tensor:
    values, gates = (each.unflatten(1, (-1, ratio)) for each in both.chunk(2, -1))
    gates = gates + positions
    if overlap == 2:
        values, gates = (torch.cat((each[..., :width].roll(1, 1), each[..., width:]), 2) for each in (values, gates))
    return (values * gates.softmax(2)).sum(2)


class ChosenLatent(nn.Module):
    """Latent attention to keys that an indexer chooses, the up-projection absorbed (arXiv:2512.02556)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        mla, sizes, h, n = model.mla, model.indexer, model.hidden_size, model.num_attention_heads
        assert mla is not None
        assert sizes is not None
        rank, latent = mla.q_lora_rank or h, mla.kv_lora_rank
        self.mla, self.sizes, self.n = mla, sizes, n
        self.q_down = nn.Sequential(nn.Linear(h, rank, False), norm(model, rank))
        self.q = nn.Linear(rank, n * (mla.qk_head_dim + mla.qk_pos_emb_head_dim), False)
        self.kv_down, self.kv_norm = nn.Linear(h, latent + mla.qk_pos_emb_head_dim, False), norm(model, latent)
        self.into = nn.ParameterList(torch.zeros(mla.qk_head_dim, latent) for _ in range(n))
        self.out = nn.ParameterList(torch.zeros(latent, mla.v_head_dim) for _ in range(n))
        self.index_q = nn.Linear(rank, sizes.index_n_heads * sizes.index_head_dim, False)
        self.index_k = nn.Sequential(nn.Linear(h, sizes.index_head_dim, False), norm(model, sizes.index_head_dim))
        self.index_weights = nn.Linear(h, sizes.index_n_heads, False)
        self.o = nn.Linear(n * mla.v_head_dim, h, False)

    def forward(self, x: Tensor) -> Tensor:
        mla = self.mla
        low = self.q_down(x)
        plain, turned = self.q(low).unflatten(-1, (self.n, -1)).split([mla.qk_head_dim, mla.qk_pos_emb_head_dim], -1)
        # the halves of a head are tensors of their own in a kernel that also turns them
        plain = plain.contiguous().unbind(2)
        absorbed = torch.stack([part @ each for part, each in zip(plain, self.into, strict=True)], 2)
        latent, position = self.kv_down(x).split([mla.kv_lora_rank, mla.qk_pos_emb_head_dim], -1)
        keys = torch.cat((self.kv_norm(latent.contiguous()), _rotate(position)), -1)
        q = torch.cat((absorbed, _rotate(turned.transpose(1, 2)).transpose(1, 2)), -1)
        out = _Chosen.apply(q, keys, self._best(x, low).int(), mla.kv_lora_rank).unbind(2)
        return self.o(torch.cat([part @ each for part, each in zip(out, self.out, strict=True)], -1))

    @torch.no_grad()
    def _best(self, x: Tensor, low: Tensor) -> Tensor:
        q = self.index_q(low).unflatten(-1, (self.sizes.index_n_heads, -1))
        total = ((q @ self.index_k(x).transpose(-1, -2)[:, None]).relu() * self.index_weights(x)[..., None]).sum(2)
        return total[0].topk(self.sizes.index_topk).indices


class CompressedAttention(nn.Module):
    """One shared key = value head, a window, and entries of compressed blocks (DeepSeek-V4)."""

    def __init__(self, model: Model, ratio: int) -> None:
        super().__init__()
        sizes, h, n, d = model.compressed, model.hidden_size, model.num_attention_heads, model.kv_channels
        assert sizes is not None
        self.sizes, self.ratio, self.n, self.d = sizes, ratio, n, d
        self.down = nn.Sequential(nn.Linear(h, sizes.q_lora_rank, False), norm(model, sizes.q_lora_rank))
        self.q = nn.Linear(sizes.q_lora_rank, n * d, False)
        self.kv = nn.Sequential(nn.Linear(h, d, False), norm(model, d))
        self.sinks = nn.Parameter(torch.zeros(n))
        self.compressor = Compressor(model, ratio, d) if ratio else None
        self.chooses = bool(ratio) and ratio == sizes.chosen
        if self.chooses:
            self.index_q = nn.Linear(sizes.q_lora_rank, sizes.index_n_heads * sizes.index_head_dim, False)
            self.index_k = Compressor(model, ratio, sizes.index_head_dim)
            self.index_weights = nn.Linear(h, sizes.index_n_heads, False)
        self.groups = nn.Parameter(torch.zeros(sizes.o_groups, n * d // sizes.o_groups, sizes.o_lora_rank))
        self.o = nn.Linear(sizes.o_groups * sizes.o_lora_rank, h, False)

    def forward(self, x: Tensor) -> Tensor:
        sizes, s = self.sizes, x.shape[1]
        latent = self.down(x)
        q = _Unit.apply(self.q(latent).unflatten(-1, (self.n, self.d)))
        keys = self.kv(x)
        near = torch.arange(s)[:, None] - torch.arange(sizes.attn_sliding_window)
        chosen = near.clamp(min=0)
        if self.compressor is not None:
            entries = self.compressor(x)
            keys = torch.cat((keys, entries), 1)
            far = torch.arange(entries.shape[1]).expand(s, -1)
            if self.chooses:
                far = self._best(x, latent, entries.shape[1])
            chosen = torch.cat((chosen, s + far), 1)
        # 4 bytes an index, as kernels take it; a sink only shifts the softmax
        out = _Chosen.apply(q, keys, chosen.int(), self.d).flatten(2).chunk(sizes.o_groups, -1)
        return self.o(torch.cat([part @ group for part, group in zip(out, self.groups, strict=True)], -1))

    @torch.no_grad()
    def _best(self, x: Tensor, latent: Tensor, entries: int) -> Tensor:
        """Entries of each query [s, k]; those of the first sequence for all."""
        q = self.index_q(latent).unflatten(-1, (self.sizes.index_n_heads, -1))
        scores = (q @ self.index_k(x).transpose(-1, -2)[:, None]).relu()
        total = (scores * self.index_weights(x)[..., None]).sum(2)
        return total[0].topk(min(self.sizes.index_topk, entries)).indices


class _Unit(torch.autograd.Function):
    """A norm without a weight, in one kernel that saves its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return functional.rms_norm(x, x.shape[-1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(functional.rms_norm(x, x.shape[-1:]), x, grad)[0]


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


class Layer(nn.Module):
    """One decoder layer on [batch, sequence, hidden]."""

    def __init__(self, model: Model, kind: LayerKind) -> None:
        super().__init__()
        h = model.hidden_size
        self.beside = model.parallel_residual
        self.first, self.second = norm(model, h), nn.Identity() if self.beside else norm(model, h)
        if isinstance(kind.mixer, sparse.CompressedAttention):
            self.attention: nn.Module = CompressedAttention(model, kind.mixer.ratio)
        elif model.indexer is not None:
            self.attention = ChosenLatent(model)
        else:
            self.attention = LatentAttention(model) if model.mla else Attention(model)
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
