"""Routed feed-forward in plain torch: router, dispatch over ``ep``, experts, the weighted way back, shared experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from projector.benchmark.layers_parallel import exchange, grouped_counts
from projector.benchmark.layers_parts import DEVIATION, FeedForward, LayerSetup, activated, cast, linear, share
from projector.workload.model import MoE


class Router(nn.Module):
    """Scores in fp32 and the experts of every token: (weights [tokens, topk], experts [tokens, topk]).

    ``forced``: tokens are dealt to experts in turn, whatever the scores (Megatron's ``moe_router_force_load_balancing``
    draws at random; in turn every expert has the same load).
    """

    def __init__(self, made: LayerSetup, moe: MoE) -> None:
        super().__init__()
        self.moe = moe
        self.forced = bool(made.workload.recipe.moe_router_force_load_balancing)
        self.wide = made.workload.recipe.moe_router_dtype == "fp32"
        self.linear = linear(made, made.model.hidden_size, moe.num_experts)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        moe, logits = self.moe, self.linear(x.float() if self.wide else x).float()
        scores = logits.sigmoid() if moe.moe_router_score_function == "sigmoid" else logits.softmax(dim=-1)
        if self.forced:
            dealt = torch.arange(x.shape[0] * moe.moe_router_topk, device=x.device).remainder(moe.num_experts)
            experts = dealt.view(-1, moe.moe_router_topk)
            return scores.gather(1, experts), experts
        weights, experts = scores.topk(moe.moe_router_topk, dim=-1)
        return weights, experts


class Experts(nn.Module):
    """``count`` feed-forward networks on rows sorted by expert; one kernel for all where the build has it."""

    def __init__(self, made: LayerSetup, count: int, width: int) -> None:
        super().__init__()
        self.model, hidden = made.model, made.model.hidden_size
        wide = (2 if self.model.gated_linear_unit else 1) * width
        options: dict[str, Any] = {"device": made.place, "dtype": made.weight_dtype}
        self.fc1 = nn.Parameter(torch.empty((count, hidden, wide), **options))
        self.fc2 = nn.Parameter(torch.empty((count, width, hidden), **options))
        nn.init.normal_(self.fc1, std=DEVIATION)
        nn.init.normal_(self.fc2, std=DEVIATION)
        loop = made.workload.recipe.moe_grouped_gemm == "loop"
        self.fused = not loop and made.dtype == torch.bfloat16 and hasattr(torch, "_grouped_mm")  # bf16 is all it takes
        self.kept: dict[int, Any] = {}
        self._product: Callable[[Tensor, Tensor, int], Tensor] = lambda x, weight, _: x @ weight

    def narrow(self, how: Any, linear: Callable[..., Tensor]) -> None:
        """Makes ``linear`` (:mod:`projector.benchmark.layers_narrow`) multiply from now on, expert after expert."""
        self.fused = False
        self._product = lambda x, weight, number: linear(x, weight.t(), how, self.kept, number)

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        """Returns the outputs of ``x``, whose ``rows`` [count] belong to each expert."""
        wide, narrow = cast(self.fc1, x), cast(self.fc2, x)
        if self.fused:
            ends = rows.cumsum(0).to(torch.int32)
            inner = activated(self.model, torch._grouped_mm(x, wide, offs=ends))
            return torch._grouped_mm(inner, narrow, offs=ends)
        pieces = enumerate(zip(torch.split(x, rows.tolist()), wide.unbind(0), narrow.unbind(0), strict=True))
        outputs = [
            self._product(activated(self.model, self._product(e, a, 2 * i)), b, 2 * i + 1) for i, (e, a, b) in pieces
        ]
        return torch.cat(outputs)


class Routed(nn.Module):
    """Mixture of experts on [tokens, hidden] without dropped tokens.

    Experts are spread over ``ep``. With ``etp`` > 1 (then ``etp`` = ``tp``) every expert is split like a dense network;
    with ``etp`` 1 a rank routes the tokens it holds, which under ``tp`` must be different ones (sequence parallelism).
    """

    def __init__(self, made: LayerSetup, moe: MoE) -> None:
        super().__init__()
        ranks, recipe = made.ranks, made.workload.recipe
        self.ranks, self.ep, self.split = ranks, ranks.ep, recipe.etp > 1 and ranks.tp.size > 1
        self.local = share(moe.num_experts, ranks.ep.size)
        self.total = self.local * ranks.ep.size
        self.router = Router(made, moe)
        width = share(moe.moe_ffn_hidden_size, ranks.tp.size if self.split else 1)
        self.experts = Experts(made, self.local, width)
        self.first = self.local * ranks.ep.rank  # number of the first expert here
        shared = moe.moe_shared_expert_intermediate_size
        self.shared = FeedForward(made, shared) if shared else None
        gated = shared and moe.moe_shared_expert_gate
        self.shared_gate = linear(made, made.model.hidden_size, 1) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        if self.split:
            x = self.ranks.enter(x)
            out = self._routed(x)
            return self.ranks.leave(out if self.shared is None else out + self._gated(x, self.shared(x)))
        out = self._routed(x)
        return out if self.shared is None else out + self._gated(x, self.ranks.leave(self.shared(self.ranks.enter(x))))

    def _gated(self, x: Tensor, out: Tensor) -> Tensor:
        """Returns the shared experts' output, weighed token by token where the model has a gate for it."""
        return out if self.shared_gate is None else torch.sigmoid(self.shared_gate(x)) * out

    def _routed(self, x: Tensor) -> Tensor:
        weights, experts = self.router(x)
        topk, chosen = experts.shape[1], experts.reshape(-1)
        order = chosen.argsort(stable=True)
        source = order.div(topk, rounding_mode="floor")
        sent = torch.bincount(chosen, minlength=self.total)
        outputs = self._expertise(x.index_select(0, source), sent)
        share_of = weights.reshape(-1).index_select(0, order).to(x.dtype)
        return torch.zeros_like(x).index_add(0, source, outputs * share_of[:, None])

    def _expertise(self, rows: Tensor, sent: Tensor) -> Tensor:
        """Sends rows sorted by expert of the whole group through the experts; outputs are in that order, too."""
        counts = grouped_counts(sent, self.ep)
        if self.ep.size == 1:
            return self.experts(rows, sent)  # type: ignore[no-any-return]
        into, out = sent.view(self.ep.size, -1).sum(1).tolist(), counts.sum(1).tolist()
        arrived = exchange(rows, out, into, self.ep)
        # by rank, then expert; experts need it the other way round
        expert = torch.arange(self.local, device=rows.device).repeat(self.ep.size)
        order = expert.repeat_interleave(counts.reshape(-1)).argsort(stable=True)
        outputs = self.experts(arrived.index_select(0, order), counts.sum(0))
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device=order.device)
        return exchange(outputs.index_select(0, back), into, out, self.ep)
