"""MegaMoE (AMD-AGI/Primus-Turbo@19fe104 primus_turbo/flydsl/mega): the exchange inside the products.

Primus has it under ``use_turbo_mega_moe``. Compute units of one kernel are divided by role: some store tokens into the
memory of their peers, others multiply the tiles that have landed. Dispatch shares its kernel with the first linear,
combine with the second; backward they swap roles. Under ideal overlap a stage takes max(exchange, products); its
authors measure 81 to 95 % of that on DeepSeek-V3. Peers are reached by memory shared inside a node. Copies of a token
are summed where they were computed, and what each rank sent back once more where the token came from, after the last of
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from projector.errors import Unsupported
from projector.mechanisms.dispatch.exchange import MOE, PREPROCESS
from projector.mechanisms.dispatch.fused import Fused
from projector.mechanisms.dispatch.permutation import copy
from projector.mechanisms.dispatch.routing import Routed
from projector.operators.part import Part
from projector.operators.rank import Rank
from projector.workload.model import MoE

__all__ = ["MegaMoE"]


@dataclass(frozen=True, kw_only=True)
class MegaMoE(Fused):
    """Rows land where their expert reads them, so nothing is permuted, and the host waits for no count. Dispatched rows
    stay for the weight gradient; later versions dispatch them anew, behind it."""

    name: ClassVar[str] = "mega_moe"
    word: ClassVar[str] = "mega_moe"

    def exchanged(self, moe: MoE, r: Routed, lo: Rank) -> tuple[tuple[Part, ...], Part]:
        if lo.recipe.ep * lo.recipe.etp > lo.node_ranks:
            raise Unsupported("MegaMoE: its peers share the memory of one node")
        landed = self.arrived(moe, r, lo)
        prepare = Part(name="moe.layout", forward=self.layout(moe, r, lo), tags=PREPROCESS)
        dispatch = Part(
            name="moe.dispatch",
            forward=self.message("moe.dispatch", moe, r, lo, 0, ("experts.fc1",)),
            backward_input=(
                *self.message("moe.dispatch.bwd", moe, r, lo, 0, ("experts.fc1.dgrad",)),
                copy("moe.permute.bwd", "permute", landed, r.tokens, 1, lo),
            ),
            tags=MOE,
        )
        combine = Part(
            name="moe.combine",
            forward=(
                *self.message("moe.combine", moe, r, lo, 0, ("experts.fc2",)),
                copy("moe.unpermute", "permute", landed, r.tokens, 1, lo),
            ),
            backward_input=self.message("moe.combine.bwd", moe, r, lo, 0, ("experts.fc2.dgrad",)),
            tags=MOE,
        )
        return (prepare, dispatch), combine
