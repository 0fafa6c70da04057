"""Dispatch by all-gather: every rank gets every token of the group and keeps those that its experts need (Megatron-LM
core/transformer/moe/token_dispatcher.py, MoEAllGatherTokenDispatcher)."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.dispatch.base import Dispatch, Exchanged, Phases
from projector.mechanisms.dispatch.exchange import copy, counts_read, permute_launches, sum_copies
from projector.mechanisms.dispatch.routing import Routed
from projector.operators.rank import Rank
from projector.operators.types import Collective, Operator
from projector.workload.model import MoE


@dataclass(frozen=True, kw_only=True)
class AllGather(Dispatch):
    """All tokens are gathered, partial sums scattered."""

    name: ClassVar[str] = "allgather"
    word: ClassVar[str] = "allgather"

    def forward_buffers(self, moe: MoE, r: Routed, view: Rank) -> float:
        _, received = self.row_bytes(r, view)
        return 2 * view.hidden_bytes * view.recipe.ep * view.recipe.etp + received + self.outputs(moe, view)

    def exchanged(self, moe: MoE, r: Routed, view: Rank) -> Exchanged:
        ranks = view.recipe.ep * view.recipe.etp
        everyone = r.tokens * ranks
        group = "ep" if view.recipe.ep > 1 else "etp"
        nbytes = view.act * view.hidden * everyone
        scatter, collect, spread = permute_launches(view)

        def message(name: str, kind: str, launches: int = 1) -> tuple[Operator, ...]:
            if ranks == 1:
                return ()
            return (Collective(name, kind, group, nbytes, launches=launches),)

        dispatch = Phases(
            forward=(
                *message("moe.dispatch", "all_gather", 3),
                *counts_read(r, view, 4),
                copy("moe.permute", "permute", r.received, r.received, scatter, view),
            ),
            backward=(
                sum_copies("moe.permute.bwd", r.received, everyone, collect, view),
                *message("moe.dispatch.bwd", "reduce_scatter", 2),
            ),
        )
        combine = Phases(
            forward=(
                sum_copies("moe.unpermute", r.received, everyone, collect, view),
                *message("moe.combine", "reduce_scatter"),
            ),
            backward=(
                *message("moe.combine.bwd", "all_gather"),
                copy("moe.unpermute.bwd", "permute", r.received, r.received, spread, view),
            ),
        )
        return (), dispatch, combine
