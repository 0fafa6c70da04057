"""A decoder in plain torch, as parts that can be trained and timed alone: embedding, layers, output with loss.

``DecoderLayer``, ``Embedding`` and ``Head`` are modules on one rank of tensor and expert parallelism
(:class:`projector.benchmark.layers_parallel.Ranks`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from projector.benchmark.layers_attention import Attention, LatentAttention
from projector.benchmark.layers_moe import Routed
from projector.benchmark.layers_parallel import Group
from projector.benchmark.layers_parts import DEVIATION, FeedForward, LayerSetup, Norm, linear, share
from projector.errors import Unsupported
from projector.workload.model import LayerKind


class DecoderLayer(nn.Module):
    """One decoder layer on [own tokens, hidden]. Raises :class:`Unsupported` for what these plain parts lack."""

    def __init__(self, made: LayerSetup, kind: LayerKind) -> None:
        super().__init__()
        model = made.model
        if not kind.plain:
            raise Unsupported("live layers that are not attention with an MLP")
        if kind.window is not None:
            raise Unsupported("live layers with sliding-window attention")
        if model.mla and model.position_embedding_type == "alibi":
            raise Unsupported("live layers of latent attention with ALiBi")
        routed = model.moe if kind.moe else None
        self.input_norm, self.mlp_norm = Norm(made, model.hidden_size), Norm(made, model.hidden_size)
        self.attention: nn.Module = LatentAttention(made, model.mla) if model.mla else Attention(made)
        self.mlp: nn.Module = Routed(made, routed) if routed else _Dense(made)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.input_norm(x))
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class _Dense(nn.Module):
    def __init__(self, made: LayerSetup) -> None:
        super().__init__()
        self.ranks = made.ranks
        self.network = FeedForward(made, made.model.ffn_hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.ranks.leave(self.network(self.ranks.enter(x)))


class Embedding(nn.Module):
    """Token embedding [batch, length] → [own tokens, hidden], its vocabulary split over ``tp``; learned positions too."""

    def __init__(self, made: LayerSetup) -> None:
        super().__init__()
        model, ranks = made.model, made.ranks
        self.ranks = ranks
        self.size = share(made.workload.padded_vocab_size, ranks.tp.size)
        self.first = self.size * ranks.tp.rank
        options: dict[str, Any] = {"device": made.place, "dtype": made.weight_dtype}
        self.dtype = made.dtype
        self.table = nn.Embedding(self.size, model.hidden_size, **options)
        nn.init.normal_(self.table.weight, std=DEVIATION)
        learned = model.position_embedding_type == "learned_absolute"
        self.positions = nn.Parameter(torch.zeros(made.length, model.hidden_size, **options)) if learned else None

    def forward(self, ids: Tensor) -> Tensor:
        if self.ranks.tp.size == 1:
            x = self.table(ids)
        else:
            local = ids - self.first
            outside = (local < 0) | (local >= self.size)
            x = nn.functional.embedding(local.masked_fill(outside, 0), self.table.weight)
            x = x.masked_fill(outside[..., None], 0.0)
        x = x if self.positions is None else x + self.positions / self.ranks.tp.size  # summed over the ranks below
        return self.ranks.leave(x.reshape(-1, x.shape[-1]).to(self.dtype))


class Head(nn.Module):
    """Final norm, output layer (vocabulary split over ``tp``) and mean cross-entropy in fp32."""

    def __init__(self, made: LayerSetup) -> None:
        super().__init__()
        model, self.ranks = made.model, made.ranks
        self.group = made.ranks.tp  # that shares the vocabulary
        self.norm = Norm(made, model.hidden_size)
        self.size = share(made.workload.padded_vocab_size, made.ranks.tp.size)
        self.output = linear(made, model.hidden_size, self.size)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss of ``x`` [own tokens, hidden] for ``labels`` [batch, length]."""
        return self.loss(self.logits(x), labels)

    def logits(self, x: Tensor) -> Tensor:
        """Returns [tokens, own part of the vocabulary]."""
        out: Tensor = self.output(self.ranks.enter(self.norm(x)))
        return out

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the mean cross-entropy over all tokens."""
        flat = labels.reshape(-1)
        if self.group.size == 1:
            return nn.functional.cross_entropy(logits.float(), flat)
        loss: Tensor = _SplitLoss.apply(logits, flat, self.group)  # type: ignore[no-untyped-call]
        return loss


class _SplitLoss(torch.autograd.Function):
    """Mean cross-entropy of logits [tokens, vocabulary/size] without gathering them (Megatron-LM, arXiv:1909.08053 §3)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, group: Group) -> Tensor:
        ctx.dtype, logits = logits.dtype, logits.float()
        most = logits.amax(dim=-1)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=group.handle)
        logits = logits - most[:, None]
        local = labels - group.rank * logits.shape[1]
        outside = (local < 0) | (local >= logits.shape[1])
        local = local.masked_fill(outside, 0)
        target = logits.gather(1, local[:, None])[:, 0].masked_fill(outside, 0.0)
        dist.all_reduce(target, group=group.handle)
        exponentials = logits.exp_()
        total = exponentials.sum(dim=-1)
        dist.all_reduce(total, group=group.handle)
        ctx.save_for_backward(exponentials.div_(total[:, None]), local, outside)
        return (total.log() - target).mean()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        shares, local, outside = ctx.saved_tensors
        out = shares.clone()
        out.scatter_add_(1, local[:, None], (outside.to(out.dtype) - 1.0)[:, None])
        return out.mul_(grads[0] / out.shape[0]).to(ctx.dtype), None, None
