"""Dispatch by one-hot masks: tokens reach fixed expert slots through dense products instead of gathers.

The capacity path of GShard-style implementations (Lepikhin et al. 2020, arXiv:2006.16668 §3.2; AI-Hypercomputer/maxtext
MaxText/layers/moe.py, ``capacity_factor`` > 0): dispatch is slots[E·C, h] = mask[S, E·C]ᵀ · x[S, h] for every sequence,
combine its transpose with the routing weights in the mask. Each costs 2·S·(E·C)·h FLOP a sequence, which grows with the
square of the sequence length and exceeds the experts' own products for long ones.
"""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.dispatch.base import Dispatch, Exchanged, Phases
from projector.mechanisms.dispatch.exchange import all_to_all
from projector.mechanisms.dispatch.routing import Routed
from projector.operators.rank import Rank
from projector.operators.types import Gemm, Stream
from projector.size import most
from projector.workload.model import MoE


@dataclass(frozen=True, kw_only=True)
class Einsum(Dispatch):
    """Dispatch under a capacity factor by ``masks``, whatever the dispatcher."""

    name: ClassVar[str] = "einsum"
    word: ClassVar[str] = "einsum"

    def forward_buffers(self, moe: MoE, r: Routed, view: Rank) -> float:
        return 2 * sum(self.row_bytes(r, view)) + self._masks(r, view)

    def compiled_buffers(self, r: Routed, view: Rank) -> float:
        sent, _ = self.row_bytes(r, view)
        return 2 * sent + self._masks(r, view)

    def _masks(self, r: Routed, view: Rank) -> float:
        """Returns the bytes of dispatch and combine mask with their gradients: sequence × slots of all experts each."""
        return 4 * view.act * view.recipe.seq_length * r.sent

    def exchanged(self, moe: MoE, r: Routed, view: Rank) -> Exchanged:
        sequences = most(1, view.batch)
        length, slots = r.tokens // sequences, r.sent // sequences

        def product(name: str, m: int, n: int, k: int, layout: str) -> Gemm:
            return Gemm(name, m, n, k, batch=sequences, dtype="bf16", layout=layout, out_bytes=view.act)

        mask = view.act * sequences * length * slots
        dispatch = Phases(
            forward=(
                Stream("moe.mask", "elementwise", mask, 2 * mask, launches=6),
                product("moe.mask_in", slots, view.hidden, length, "TN"),
                *all_to_all("moe.dispatch", r, view),
            ),
            backward=(
                *all_to_all("moe.dispatch.bwd", r, view),
                product("moe.mask_in.dgrad", length, view.hidden, slots, "NN"),
            ),
        )
        combine = Phases(
            forward=(*all_to_all("moe.combine", r, view), product("moe.mask_out", length, view.hidden, slots, "TN")),
            backward=(
                product("moe.mask_out.dgrad", slots, view.hidden, length, "NN"),
                product("moe.mask_out.weights", length, slots, view.hidden, "NN"),
                Stream("moe.mask.bwd", "elementwise", 2 * mask, mask, launches=4),
                *all_to_all("moe.combine.bwd", r, view),
            ),
        )
        return (), dispatch, combine
