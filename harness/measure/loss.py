"""Cross-entropy, also over a vocabulary that tensor-parallel ranks share."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

__all__ = ["cross_entropy"]


class _Split(torch.autograd.Function):
    """Cross-entropy of [tokens, part of the vocabulary]: three reductions over the group, none of them of logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, group: Any) -> Tensor:
        top = logits.max(dim=-1).values
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        shifted = logits - top[:, None]
        own = labels - dist.get_rank(group) * logits.shape[1]
        mine = (own >= 0) & (own < logits.shape[1])
        own = own.clamp(0, logits.shape[1] - 1)
        target = shifted.gather(1, own[:, None]).squeeze(1) * mine
        exponentials = shifted.exp()
        total = exponentials.sum(-1)
        dist.all_reduce(target, group=group)
        dist.all_reduce(total, group=group)
        ctx.save_for_backward(exponentials.div_(total[:, None]), own, mine)
        return total.log() - target

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        shares, own, mine = ctx.saved_tensors
        made = shares.clone()
        made.scatter_add_(1, own[:, None], -mine.to(made.dtype)[:, None])
        return made * grads[0][:, None], None, None


def cross_entropy(logits: Tensor, labels: Tensor, group: Any = None) -> Tensor:
    """Mean over all tokens, in fp32. ``group``: ranks that share the vocabulary, None for one."""
    flat, wanted = logits.flatten(0, -2).float(), labels.flatten()
    if group is None:
        return functional.cross_entropy(flat, wanted)
    function: Any = _Split
    made: Tensor = function.apply(flat, wanted, group).mean()
    return made
