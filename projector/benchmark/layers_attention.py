"""Attention of a decoder in plain torch: grouped queries and multi-head latent attention, heads split over ``tp``."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from projector.benchmark.layers_parallel import Group, copy_to
from projector.benchmark.layers_parts import LayerSetup, Norm, linear, share
from projector.workload.model import MLA


class Rotary(nn.Module):
    """Rotation of [batch, length, heads, width] in halves (RoFormer, arXiv:2104.09864)."""

    def __init__(self, made: LayerSetup, width: int) -> None:
        super().__init__()
        rates = 10000.0 ** (-torch.arange(0, width, 2, device=made.place).float() / width)
        angles = torch.arange(made.length, device=made.place).float()[:, None] * rates
        paired = torch.cat([angles, angles], dim=-1)[:, None, :]
        self.register_buffer("cos", paired.cos().to(made.dtype), persistent=False)
        self.register_buffer("sin", paired.sin().to(made.dtype), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        low, high = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat([-high, low], dim=-1) * self.sin  # type: ignore[operator]


def slopes(heads: int) -> list[float]:
    """Returns the slope of ALiBi's bias for each head (arXiv:2108.12409 §3): 2^(-8/n), its square and so on for a power
    of two; other numbers take those of the power below, then every other one of the power above."""
    whole = 2 ** int(math.log2(heads))
    first = [2.0 ** (-8.0 * i / whole) for i in range(1, whole + 1)]
    return first + [2.0 ** (-4.0 * i / whole) for i in range(1, 2 * (heads - whole), 2)]


@lru_cache(maxsize=1)  # all layers of a rank share it
def distances(heads: int, first: int, own: int, length: int, dtype: torch.dtype, place: torch.device) -> Tensor:
    """Returns what ALiBi adds to the scores of heads ``first`` to ``first + own``: [own, length, length], minus
    infinity for later keys."""
    places = torch.arange(length, device=place)
    distance = (places[:, None] - places).float()
    slope = torch.tensor(slopes(heads)[first : first + own], device=place)[:, None, None]
    return (-slope * distance).masked_fill(distance < 0, -math.inf).to(dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns [tokens, heads·width] of [batch, length, heads, width]; ``bias`` masks later keys itself."""
    tokens = q.shape[0] * q.shape[1]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    grouped = k.shape[1] < q.shape[1]
    out = nn.functional.scaled_dot_product_attention(q, k, v, bias, is_causal=bias is None, enable_gqa=grouped)
    return out.transpose(1, 2).reshape(tokens, -1)


class Attention(nn.Module):
    """Self-attention with grouped queries on [tokens, hidden]; a rank holds its share of heads and groups."""

    def __init__(self, made: LayerSetup) -> None:
        super().__init__()
        model, ranks = made.model, made.ranks
        self.made, self.ranks = made, ranks
        self.heads = share(model.num_attention_heads, ranks.tp.size)
        self.groups = share(model.num_query_groups, ranks.tp.size)
        self.width = model.kv_channels
        self.alibi, self.rank = model.position_embedding_type == "alibi", ranks.tp.rank
        biased = model.add_bias_linear or model.add_qkv_bias
        parts = [self.heads + 2 * self.groups] if made.execution.fusion.qkv else [self.heads, self.groups, self.groups]
        self.qkv = nn.ModuleList(linear(made, model.hidden_size, part * self.width, biased) for part in parts)
        self.proj = linear(made, self.heads * self.width, model.hidden_size, model.add_bias_linear)
        self.rotate: nn.Module = Rotary(made, self.width) if model.position_embedding_type == "rope" else nn.Identity()
        self.q_norm: nn.Module = Norm(made, self.width) if model.qk_layernorm else nn.Identity()
        self.k_norm: nn.Module = Norm(made, self.width) if model.qk_layernorm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x, length = self.ranks.enter(x), self.made.length
        mixed = [part(x).unflatten(0, (-1, length)).unflatten(-1, (-1, self.width)) for part in self.qkv]
        q, k, v = mixed if len(mixed) > 1 else mixed[0].split([self.heads, self.groups, self.groups], dim=2)
        own, bias = q.shape[2], None
        if self.alibi:
            heads = self.made.model.num_attention_heads
            bias = distances(heads, self.rank * own, own, length, q.dtype, q.device)
        mixed_heads = _attend(self.rotate(self.q_norm(q)), self.rotate(self.k_norm(k)), v, bias)
        return self.ranks.leave(self.proj(mixed_heads))


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) on [tokens, hidden]; down-projections are whole.

    ``key_group``: the ranks over which the gradient of the rotated key is summed, which all heads share: those that
    share the heads where weights are sharded tensors.
    """

    def __init__(self, made: LayerSetup, mla: MLA) -> None:
        super().__init__()
        model, ranks = made.model, made.ranks
        self.made, self.ranks, self.mla = made, ranks, mla
        self.heads = share(model.num_attention_heads, ranks.tp.size)
        turned, rank = mla.qk_pos_emb_head_dim, mla.q_lora_rank
        self.q_down = linear(made, model.hidden_size, rank) if rank else None
        self.q_norm = Norm(made, rank) if rank else None
        self.q_up = linear(made, rank or model.hidden_size, self.heads * (mla.qk_head_dim + turned))
        self.kv_down = linear(made, model.hidden_size, mla.kv_lora_rank + turned)
        self.kv_norm = Norm(made, mla.kv_lora_rank)
        self.kv_up = linear(made, mla.kv_lora_rank, self.heads * (mla.qk_head_dim + mla.v_head_dim))
        self.proj = linear(made, self.heads * mla.v_head_dim, model.hidden_size)
        rotated = model.position_embedding_type == "rope"
        self.rotate: nn.Module = Rotary(made, turned) if rotated else nn.Identity()
        self.key_group = Group()

    def forward(self, x: Tensor) -> Tensor:
        mla, length = self.mla, self.made.length
        plain, turned = mla.qk_head_dim, mla.qk_pos_emb_head_dim
        x = self.ranks.enter(x)
        narrow = x if self.q_down is None or self.q_norm is None else self.q_norm(self.q_down(x))
        queries = self.q_up(narrow).unflatten(0, (-1, length)).unflatten(-1, (-1, plain + turned))
        q_plain, q_turned = queries.split([plain, turned], dim=-1)
        latent, key = self.kv_down(x).split([mla.kv_lora_rank, turned], dim=-1)
        up = self.kv_up(self.kv_norm(latent)).unflatten(0, (-1, length)).unflatten(-1, (-1, plain + mla.v_head_dim))
        k, v = up.split([plain, mla.v_head_dim], dim=-1)
        key = self.rotate(copy_to(key, self.key_group).reshape(-1, length, 1, turned))
        key = key.expand(-1, -1, queries.shape[2], -1)
        q = torch.cat([q_plain, self.rotate(q_turned)], dim=-1)
        return self.ranks.leave(self.proj(_attend(q, torch.cat([k, key], dim=-1), v)))
