"""Dispatch by all-to-all: every routed copy goes to the rank of its expert (Megatron-LM
core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher)."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.dispatch.base import Dispatch, Exchanged, Phases
from projector.mechanisms.dispatch.exchange import (
    FC1,
    FC1_BACKWARD,
    FC2,
    FC2_BACKWARD,
    PREPROCESS,
    all_to_all,
    copy,
    counts_read,
    hiding_operators,
    permute_launches,
    sum_copies,
)
from projector.mechanisms.dispatch.routing import Routed
from projector.operators.module import Module
from projector.operators.rank import Rank
from projector.operators.types import Collective, Operator, Stream
from projector.workload.model import MoE
from projector.workload.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class AllToAll(Dispatch):
    """Tokens are permuted by expert, exchanged, sorted by local expert, and the way back."""

    name: ClassVar[str] = "alltoall"
    word: ClassVar[str] = "alltoall"

    def ragged(self, recipe: Recipe) -> bool:
        return recipe.ep > 1 and not recipe.moe_pad_expert_input_to_capacity

    def forward_buffers(self, moe: MoE, r: Routed, view: Rank) -> float:
        """Returns the bytes of the permuted send buffer, the receive buffer, the unsorted expert output and the result
        of the exchange, local variables of one Python function. With one local expert nothing is sorted, so the receive
        buffer is the saved input."""
        sent, received = self.row_bytes(r, view)
        return (
            2 * sent + 2 * received + self.outputs(moe, view) - (received if moe.num_experts == view.recipe.ep else 0.0)
        )

    def compiled_buffers(self, r: Routed, view: Rank) -> float:
        """Returns the bytes of two buffers of tokens; where rows are as many as arrive also of the receive buffer that the
        exchange writes into and its copy sorted by expert (jax.lax.ragged_all_to_all takes an initialised operand)."""
        sent, received = self.row_bytes(r, view)
        return 2 * sent + (0.0 if r.fixed else 2 * received)

    def exchanged(self, moe: MoE, r: Routed, view: Rank) -> Exchanged:
        scatter, collect, spread = permute_launches(view)
        into = copy("moe.permute", "permute", r.tokens, r.sent, scatter, view)
        back = sum_copies("moe.unpermute", r.sent, r.tokens, collect, view)
        sort = (copy("moe.sort", "permute", r.held, r.held, 2, view),) if r.experts > 1 else ()
        unsort = (copy("moe.unsort", "permute", r.held, r.held, 2, view),) if r.experts > 1 else ()
        beside, beside_backward = hiding_operators(view, FC1), hiding_operators(view, FC1_BACKWARD)
        prepare = Module(
            "moe.permute",
            forward=(*_preprocess(moe, view), into),
            # with the gradients of the routing weights, which travel beside the tokens
            backward_input=(sum_copies("moe.permute.bwd", r.sent, r.tokens, collect + 2, view),),
            tags=PREPROCESS,
        )
        dispatch = Phases(
            forward=(
                *counts_read(r, view, 4),
                *_exchange("moe.dispatch", r, view, beside, probs=True),
                *_expert_tensor("moe.etp_ag", "all_gather", view.act, r, view),
                *sort,
            ),
            backward=(
                *(copy("moe.sort.bwd", "permute", r.held, r.held, 2, view) for _ in sort),
                *_expert_tensor("moe.etp_ag.bwd", "reduce_scatter", view.act, r, view),
                *_exchange("moe.dispatch.bwd", r, view, beside_backward, probs=True),
            ),
        )
        combine = Phases(
            forward=(
                *unsort,
                *_expert_tensor("moe.etp_rs", "reduce_scatter", 4.0, r, view),
                *_exchange("moe.combine", r, view, hiding_operators(view, FC2)),
                back,
            ),
            backward=(
                copy("moe.unpermute.bwd", "permute", r.tokens, r.sent, spread, view),
                *_exchange("moe.combine.bwd", r, view, hiding_operators(view, FC2_BACKWARD)),
                *_expert_tensor("moe.etp_rs.bwd", "all_gather", 4.0, r, view),
                *(copy("moe.unsort.bwd", "permute", r.held, r.held, 2, view) for _ in unsort),
            ),
        )
        return (prepare,), dispatch, combine


def _preprocess(moe: MoE, view: Rank) -> tuple[Operator, ...]:
    """Counts rows per expert, gathered over the expert group: tiny kernels and one tiny all-gather, all latency."""
    counts = Stream("moe.preprocess", "router", 8.0 * moe.num_experts, 8.0 * moe.num_experts, launches=10)
    if view.recipe.ep * view.recipe.etp == 1:
        return (counts,)
    group = "ep" if view.recipe.ep > 1 else "etp"
    nbytes = 8.0 * moe.num_experts * view.recipe.ep * view.recipe.etp
    return (counts, Collective("moe.counts_ag", "all_gather", group, nbytes))


def _exchange(name: str, r: Routed, view: Rank, beside: tuple[str, ...], probs: bool = False) -> tuple[Operator, ...]:
    transport = "one_shot" if view.recipe.moe_all_to_all_kernel == "one_shot" else "nccl"
    tokens = all_to_all(name, r, view, beside, transport)
    if not probs or not tokens:
        return tokens
    weights = Collective(f"{name}_probs", "all_to_all", "ep", 4.0 * r.sent, hides_behind=beside)
    return (*tokens, weights)


def _expert_tensor(name: str, kind: str, element: float, r: Routed, view: Rank) -> tuple[Operator, ...]:
    """Returns the collective by which experts split over ``etp`` see all rows or sum their partial outputs (fp32)."""
    if view.recipe.etp == 1:
        return ()
    return (Collective(name, kind, "etp", element * view.hidden * r.received),)
