"""Decoder parts as torch modules: attention (GQA, MLA), dense feed-forward, norms. Weights are fp32, cast where used.

Projections stand apart (q, k, v; gate, up), so that DTensor's column-parallel style cuts each of them by heads or width.
Only trainings import this file: it needs torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from projector.workload.model import MLA, Model

__all__ = ["Attention", "LatentAttention", "Linear", "Mlp", "Norm", "Rotary", "activated"]

_EPSILON = 1e-5
_BASE = 10000.0  # of rotary frequencies (RoFormer, arXiv:2104.09864)


class Linear(nn.Linear):
    """A linear layer whose weight is cast to the type of its input."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, self.weight.to(x.dtype), bias)


class Norm(nn.Module):
    """RMSNorm or LayerNorm over the last dimension."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if kind == "LayerNorm" else None

    def forward(self, x: Tensor) -> Tensor:
        width, weight = (x.shape[-1],), self.weight.to(x.dtype)
        if self.bias is not None:
            return functional.layer_norm(x, width, weight, self.bias.to(x.dtype), _EPSILON)
        return functional.rms_norm(x, width, weight, _EPSILON)


class Rotary(nn.Module):
    """Rotation of [batch, length, heads, width] in halves; nothing where the model has no rotary positions."""

    def __init__(self, width: int, length: int, used: bool) -> None:
        super().__init__()
        self.used = used
        if used:
            rates = _BASE ** (-torch.arange(0, width, 2).float() / width)
            angles = torch.arange(length).float()[:, None] * rates
            both = torch.cat([angles, angles], dim=-1)[:, None, :]
            self.register_buffer("cos", both.cos(), persistent=False)
            self.register_buffer("sin", both.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.used:
            return x
        low, high = x.chunk(2, dim=-1)
        cos, sin = self.get_buffer("cos").to(x.dtype), self.get_buffer("sin").to(x.dtype)
        return x * cos + torch.cat([-high, low], dim=-1) * sin


def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of [batch, length, heads, width] tensors; [batch, length, heads x width]."""
    grouped: dict[str, Any] = {"enable_gqa": True} if k.shape[2] < q.shape[2] else {}
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, **grouped
    )
    return out.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Multi-head or grouped-query attention on [batch, length, hidden]; a tensor-parallel rank holds its own heads."""

    def __init__(self, model: Model, length: int) -> None:
        super().__init__()
        hidden, self.width = model.hidden_size, model.kv_channels
        queries, keys = model.num_attention_heads * self.width, model.num_query_groups * self.width
        bias = model.add_bias_linear or model.add_qkv_bias
        self.q, self.k, self.v = Linear(hidden, queries, bias), Linear(hidden, keys, bias), Linear(hidden, keys, bias)
        self.out = Linear(queries, hidden, model.add_bias_linear)
        self.q_norm = Norm(self.width, model.normalization) if model.qk_layernorm else None
        self.k_norm = Norm(self.width, model.normalization) if model.qk_layernorm else None
        self.rotary = Rotary(self.width, length, model.position_embedding_type == "rope")

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, self.width)) for part in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        made: Tensor = self.out(core(self.rotary(q), self.rotary(k), v))
        return made


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    ``shared``: what the rotated key that all heads share passes through; tensor parallelism puts the sum of its
    gradient over the ranks there.
    """

    def __init__(self, model: Model, mla: MLA, length: int) -> None:
        super().__init__()
        hidden, heads, kind = model.hidden_size, model.num_attention_heads, model.normalization
        self.plain, self.turned, self.values = mla.qk_head_dim, mla.qk_pos_emb_head_dim, mla.v_head_dim
        self.rank = mla.kv_lora_rank
        width = heads * (self.plain + self.turned)
        self.q_down = Linear(hidden, mla.q_lora_rank, False) if mla.q_lora_rank else None
        self.q_norm = Norm(mla.q_lora_rank, kind) if mla.q_lora_rank else None
        self.q = Linear(mla.q_lora_rank or hidden, width, False)
        self.kv_down, self.kv_norm = Linear(hidden, self.rank + self.turned, False), Norm(self.rank, kind)
        self.kv = Linear(self.rank, heads * (self.plain + self.values), False)
        self.out = Linear(heads * self.values, hidden, False)
        self.rotary = Rotary(self.turned, length, model.position_embedding_type == "rope")
        self.shared: nn.Module = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        narrow = x if self.q_down is None or self.q_norm is None else self.q_norm(self.q_down(x))
        q = self.q(narrow).unflatten(-1, (-1, self.plain + self.turned))
        latent, key = self.kv_down(x).split([self.rank, self.turned], dim=-1)
        kv = self.kv(self.kv_norm(latent)).unflatten(-1, (-1, self.plain + self.values))
        k, v = kv.split([self.plain, self.values], dim=-1)
        key = self.rotary(self.shared(key).unsqueeze(2)).expand(-1, -1, q.shape[2], -1)
        q_plain, q_turned = q.split([self.plain, self.turned], dim=-1)
        whole = torch.cat([q_plain, self.rotary(q_turned)], -1)
        made: Tensor = self.out(core(whole, torch.cat([k, key], -1), v))
        return made


def activated(gate: Tensor, up: Tensor | None) -> Tensor:
    """SwiGLU with ``up``, GELU without."""
    return functional.gelu(gate) if up is None else functional.silu(gate) * up


class Mlp(nn.Module):
    """Dense feed-forward of ``width``; gate and up apart."""

    def __init__(self, model: Model, width: int) -> None:
        super().__init__()
        hidden, bias = model.hidden_size, model.add_bias_linear
        self.gate = Linear(hidden, width, bias)
        self.up = Linear(hidden, width, bias) if model.gated_linear_unit else None
        self.down = Linear(width, hidden, bias)

    def forward(self, x: Any) -> Tensor:
        made: Tensor = self.down(activated(self.gate(x), None if self.up is None else self.up(x)))
        return made
