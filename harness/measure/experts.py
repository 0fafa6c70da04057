"""Routed experts: router, permutation, all-to-all over the expert-parallel group, experts, and the weighted way back."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.measure.layers import Linear, Mlp, activated
from projector.workload.model import Model, MoE

__all__ = ["Experts", "Routed"]


class _Exchange(torch.autograd.Function):
    """``all_to_all_single`` of rows; its backward sends the gradient the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, out: list[int], into: list[int], group: Any) -> Tensor:
        ctx.sizes = (out, into, group)
        made = x.new_empty(sum(out), *x.shape[1:])
        dist.all_to_all_single(made, x.contiguous(), out, into, group=group)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        out, into, group = ctx.sizes
        return _exchanged(grads[0], into, out, group), None, None, None


def _exchanged(x: Tensor, out: list[int], into: list[int], group: Any) -> Tensor:
    """Rows of ``x``, ``into`` so many to each rank, against ``out`` so many from each."""
    function: Any = _Exchange
    made: Tensor = function.apply(x, out, into, group)
    return made


class Experts(nn.Module):
    """``count`` experts of one rank, from number ``first``: weights [count, hidden, wide] and [count, width, hidden]."""

    def __init__(self, model: Model, moe: MoE, first: int, count: int) -> None:
        super().__init__()
        self.first, self.gated = first, model.gated_linear_unit
        width, hidden = moe.moe_ffn_hidden_size, model.hidden_size
        self.wide = nn.Parameter(torch.empty(count, hidden, (2 if self.gated else 1) * width))
        self.narrow = nn.Parameter(torch.empty(count, width, hidden))

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        """``x``: rows sorted by expert; ``counts``: rows of each."""
        if x.dtype == torch.bfloat16 and hasattr(torch, "_grouped_mm"):
            ends = counts.cumsum(0).to(torch.int32)
            inner = self._activated(torch._grouped_mm(x, self.wide.to(x.dtype), offs=ends))
            made: Tensor = torch._grouped_mm(inner, self.narrow.to(x.dtype), offs=ends)
            return made
        wide, narrow = self.wide.to(x.dtype), self.narrow.to(x.dtype)
        # unbound once: the gradient of an index into a weight is a whole weight of zeros
        experts = zip(torch.split(x, counts.tolist()), wide.unbind(), narrow.unbind(), strict=True)
        return torch.cat([self._activated(rows @ first) @ second for rows, first, second in experts])

    def _activated(self, x: Tensor) -> Tensor:
        return activated(*x.chunk(2, dim=-1)) if self.gated else activated(x, None)


class Routed(nn.Module):
    """The mixture of experts of one layer on [batch, length, hidden]; dropless.

    ``group``: the expert-parallel ranks, None for one. ``even``: tokens go round the experts whatever the router says
    (its probabilities still weigh them), as ``--moe-router-force-load-balancing``.
    """

    def __init__(self, model: Model, moe: MoE, group: Any, even: bool) -> None:
        super().__init__()
        self.ranks, self.group, self.even = dist.get_world_size(group) if group is not None else 1, group, even
        self.topk, self.count, self.sigmoid = (
            moe.moe_router_topk,
            moe.num_experts,
            moe.moe_router_score_function == "sigmoid",
        )
        own = moe.num_experts // self.ranks
        first = own * (dist.get_rank(group) if group is not None else 0)
        self.router = Linear(model.hidden_size, moe.num_experts, model.add_bias_linear)
        self.experts = Experts(model, moe, first, own)
        shared = moe.moe_shared_expert_intermediate_size
        self.shared = Mlp(model, shared) if shared else None
        self.shared_gate = Linear(model.hidden_size, 1, False) if shared and moe.moe_shared_expert_gate else None

    def forward(self, batch: Tensor) -> Tensor:
        x = batch.flatten(0, 1)
        weight, chosen = self._route(x)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        source = order.div(self.topk, rounding_mode="floor")
        made = self._experts(x.index_select(0, source), torch.bincount(flat, minlength=self.count))
        made = made * weight.flatten().index_select(0, order).to(x.dtype)[:, None]
        out = torch.zeros_like(x).index_add(0, source, made)
        if self.shared is not None:
            beside = self.shared(x)
            out = out + (beside if self.shared_gate is None else torch.sigmoid(self.shared_gate(x)) * beside)
        return out.view_as(batch)

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(weight, expert) of [tokens, topk]."""
        logits = self.router(x.float())
        scores = torch.sigmoid(logits) if self.sigmoid else torch.softmax(logits, dim=-1)
        if self.even:
            turns = torch.arange(x.shape[0] * self.topk, device=x.device)
            chosen = turns.remainder(self.count).view(-1, self.topk)
            return scores.gather(1, chosen), chosen
        weight, chosen = scores.topk(self.topk, dim=-1)
        return weight, chosen

    def _experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        """``rows``: sorted by expert, of all experts; their results in the same order."""
        if self.ranks == 1:
            made: Tensor = self.experts(rows, counts)
            return made
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.group)
        received = theirs.view(self.ranks, -1)  # [from rank, own expert]
        out, into = received.sum(1).tolist(), counts.view(self.ranks, -1).sum(1).tolist()
        mine = _exchanged(rows, out, into, self.group)
        owner = torch.arange(received.shape[1], device=rows.device).repeat(self.ranks)
        by_expert = owner.repeat_interleave(received.flatten()).argsort(stable=True)
        done = self.experts(mine.index_select(0, by_expert), received.sum(0))
        back = torch.empty_like(by_expert).scatter_(0, by_expert, torch.arange(len(by_expert), device=rows.device))
        return _exchanged(done.index_select(0, back), into, out, self.group)
