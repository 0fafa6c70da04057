"""Norms, rotation and plain attention in torch, written from the papers alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from projector.workload.model import Model


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


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., tuple[Tensor, ...]], *given: Tensor) -> Tensor:
        out, *more = function(*given)
        ctx.function, ctx.number = function, len(given)
        ctx.save_for_backward(*given, *more)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with torch.enable_grad():
            given = [each.detach().requires_grad_() for each in ctx.saved_tensors[: ctx.number]]
            return None, *torch.autograd.grad(ctx.function(*given)[0], given, grad)


def in_one_kernel(function: Callable[..., tuple[Tensor, ...]], *given: Tensor) -> Tensor:
    """The first result of ``function``; what enters is saved, and its other results; its backward makes the rest again."""
    return _Once.apply(function, *given)  # type: ignore[no-any-return]


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


def rotate(x: Tensor) -> Tensor:
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
        self.norms = nn.ModuleList(RMSNorm(d) if model.qk_layernorm else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        made = (each(x).unflatten(-1, (-1, self.d)) for each in (self.q, self.k))
        q, k = (norm(each).transpose(1, 2) for norm, each in zip(self.norms, made, strict=True))
        v = k if self.v is self.k else self.v(x).unflatten(-1, (-1, self.d)).transpose(1, 2)
        self.made = k, v
        return self.o(_Flash.apply(rotate(q), rotate(k), v).flatten(2))


class ReusingAttention(Attention):
    """The same with keys and values of ``first``, which it rotates for itself (cross-layer attention, arXiv:2405.12981)."""

    def __init__(self, model: Model, first: Attention) -> None:
        super().__init__(model)
        del self.k, self.v
        self.first = [first]  # in a list: not a module of this one

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.first[0].made
        q = self.q(x).unflatten(-1, (-1, self.d)).transpose(1, 2)
        return self.o(_Flash.apply(rotate(q), rotate(k), v).flatten(2))


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
        q = torch.cat((plain, rotate(turned)), -1)
        latent, position = self.kv_down(x).split([mla.kv_lora_rank, mla.qk_pos_emb_head_dim], -1)
        kv = self.kv_up(self.kv_norm(latent.contiguous())).unflatten(-1, (n, -1)).transpose(1, 2)
        k, v = kv.split([mla.qk_head_dim, mla.v_head_dim], -1)
        k = torch.cat((k, rotate(position[:, None]).expand(-1, n, -1, -1)), -1)
        out = _Flash.apply(q, k, v.contiguous()).flatten(2)
        return self.o(out if self.gate is None else out * self.gate(x).sigmoid())
