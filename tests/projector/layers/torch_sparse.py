"""Attention to chosen and compressed keys in torch, written from the papers alone."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from projector.workload.model import Model
from tests.projector.layers.torch_norms import in_one_kernel, norm, rotate


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
        pooled = partial(_pooled, self.ratio, self.width, self.overlap)
        return self.norm(in_one_kernel(pooled, self.both(x), self.positions))


def _pooled(ratio: int, width: int, overlap: int, both: Tensor, positions: Tensor) -> tuple[Tensor]:
    values, gates = (each.unflatten(1, (-1, ratio)) for each in both.chunk(2, -1))
    gates = gates + positions
    if overlap == 2:
        values, gates = (torch.cat((each[..., :width].roll(1, 1), each[..., width:]), 2) for each in (values, gates))
    return ((values * gates.softmax(2)).sum(2),)


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
        keys = torch.cat((self.kv_norm(latent.contiguous()), rotate(position)), -1)
        q = torch.cat((absorbed, rotate(turned.transpose(1, 2)).transpose(1, 2)), -1)
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
        heads = self.q(latent).unflatten(-1, (self.n, self.d))
        q = in_one_kernel(lambda x: (functional.rms_norm(x, x.shape[-1:]),), heads)
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


class _OneHead(nn.Module):
    """Projections of many queries on one head that is keys and values."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        assert model.block_attention is not None
        h, n, self.d, self.sizes = (
            model.hidden_size, model.num_attention_heads, model.kv_channels, model.block_attention,
        )  # fmt: skip
        self.q, self.k, self.o = (
            nn.Linear(h, n * self.d, False),
            nn.Linear(h, self.d, False),
            nn.Linear(n * self.d, h, False),
        )


class BlockAttention(_OneHead):
    """MoBA with one head that is keys and values: the best blocks of each query by its product with their means."""

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.q(x).unflatten(-1, (-1, self.d)), self.k(x)
        with torch.no_grad():
            means = k.unflatten(1, (-1, self.sizes.block_size)).mean(2)
            scores = (q @ means.transpose(-1, -2)[:, None]).sum(2)[0]
            blocks = scores.topk(self.sizes.block_counts).indices
            chosen = (blocks[..., None] * self.sizes.block_size + torch.arange(self.sizes.block_size)).flatten(1)
        return self.o(_Chosen.apply(q, k, chosen.int(), self.d).flatten(2))  # type: ignore[no-any-return]


class NativeSparseAttention(_OneHead):
    """NSA (arXiv:2502.11089) with one head that is keys and values: attention to the means of blocks, to the blocks that the
    heads together choose and to a window, each through a gate of every head."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.gates = nn.Linear(model.hidden_size, 3 * model.num_attention_heads, False)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.q(x).unflatten(-1, (-1, self.d)), self.k(x)
        size, length = self.sizes.block_size, x.shape[1]
        means = k.unflatten(1, (-1, size)).mean(2)
        with torch.no_grad():
            scores = (q @ means.transpose(-1, -2)[:, None]).sum(2)[0]
            blocks = scores.topk(self.sizes.block_counts).indices
            chosen = (blocks[..., None] * size + torch.arange(size)).flatten(1)
        near = (torch.arange(length)[:, None] - torch.arange(self.sizes.window_size)).clamp(min=0)
        every = torch.arange(means.shape[1]).expand(length, -1)
        branches = ((means, every), (k, chosen), (k, near))
        outs = [_Chosen.apply(q, keys, of.int(), self.d) for keys, of in branches]
        gates = self.gates(x).sigmoid().unflatten(-1, (3, -1, 1)).unbind(2)
        return self.o(sum(gate * out for gate, out in zip(gates, outs, strict=True)).flatten(2))  # type: ignore[union-attr]
