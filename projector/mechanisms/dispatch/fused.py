"""What dispatchers with exchange kernels of their own have in common: one message for each rank and node that a token
reaches, sums on the way back (Megatron-LM core/transformer/moe/{token_dispatcher,fused_a2a}.py)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from projector.mechanisms.dispatch.base import Dispatch
from projector.mechanisms.dispatch.exchange import (
    FC1,
    FC1_BACKWARD,
    FC2,
    FC2_BACKWARD,
    MOE,
    PREPROCESS,
    behind,
    counts_read,
)
from projector.mechanisms.dispatch.permutation import copy, scatter_adds, sum_copies
from projector.mechanisms.dispatch.routing import Routed, distinct_destinations
from projector.operators.part import Part
from projector.operators.rank import Rank
from projector.operators.types import Collective, Operator, Stream
from projector.parameter import parameter
from projector.workload.model import MoE
from projector.workload.recipe import Recipe

__all__ = ["Fused"]

_FUSED_EXCHANGE = parameter(
    1.25, kind="assumed", source="DeepEP and HybridEP fuse permutation into the exchange: about 2.5 of the four buffers"
)
_DEVICE = parameter(
    0.5e9,
    unit="B",
    kind="assumed",
    source="DeepEP keeps its buffers outside the framework's allocator (deepseek-ai/DeepEP@dd758caf csrc/config.hpp)",
)


@dataclass(frozen=True, kw_only=True)
class Fused(Dispatch):
    """``flex`` in a recipe; ``word`` is also the transport of its messages."""

    permutes: ClassVar[bool]
    """Permutation is part of its kernels."""

    def device_bytes(self, recipe: Recipe) -> float:
        return _DEVICE if recipe.ep > 1 else 0.0

    def forward_buffers(self, moe: MoE, r: Routed, lo: Rank) -> float:
        return _FUSED_EXCHANGE * sum(self.row_bytes(r, lo)) + self.outputs(moe, lo)

    def compiled_buffers(self, r: Routed, lo: Rank) -> float:
        """A token is sent once to a rank, however many of its experts want it; of scatter-additions one accumulator is
        alive at a time."""
        _, received = self.row_bytes(r, lo)
        return 2 * lo.hidden_bytes + (received if lo.recipe.moe_dispatch_scatter_adds else 0.0)

    def exchanged(self, moe: MoE, r: Routed, lo: Rank) -> tuple[tuple[Part, ...], Part]:
        everyone = r.tokens * lo.recipe.ep * lo.recipe.etp
        arrived = min(
            everyone, r.tokens * distinct_destinations(moe, lo.recipe.ep) * max(lo.recipe.etp, r.received / r.sent)
        )
        landed = everyone if r.held > r.rows else arrived

        def message(name: str, launches: int, beside: tuple[str, ...]) -> tuple[Operator, ...]:
            if lo.recipe.ep * lo.recipe.etp == 1:
                return ()
            return (
                Collective(
                    name=name,
                    kind="all_to_all",
                    group="ep" if lo.recipe.ep > 1 else "etp",
                    bytes=lo.act * lo.hidden * arrived,
                    hides_behind=beside,
                    transport=self.word,
                    nodes_bytes=lo.act * lo.hidden * r.tokens * _other_nodes(moe, lo),
                    launches=launches,
                ),
            )

        def local_copy(name: str, launches: int, back: bool) -> tuple[Operator, ...]:
            if self.permutes:
                return ()
            if back:
                return (sum_copies(name, r.held, landed, launches, lo),)
            return (copy(name, "permute", landed, r.held, launches, lo),)

        # DeepEP's host spins on the count of rows that will arrive before it launches the dispatch (csrc/deep_ep.cpp);
        # with a receive buffer for the worst case (stage 2, and HybridEP) the host asks after it, at stage 3 never
        late = self.permutes or (lo.recipe.sync_free_stage or 0) >= 2
        wait = counts_read(r, lo, 3)
        layout = Stream(
            name="moe.layout", kind="router", read=8.0 * moe.num_experts * r.tokens, write=8.0 * r.tokens, launches=2
        )
        prepare = Part(name="moe.layout", forward=(layout,), tags=PREPROCESS)
        dispatch = Part(
            name="moe.dispatch",
            forward=(
                *(() if late else wait),
                *message("moe.dispatch", 2, behind(lo, FC1)),
                *(wait if late else ()),
                *local_copy("moe.permute", 5, False),
            ),
            backward_input=(
                *local_copy("moe.permute.bwd", 1, True),
                *scatter_adds(r, lo),
                *message("moe.dispatch.bwd", 1, behind(lo, FC1_BACKWARD)),
            ),
            tags=MOE,
        )
        combine = Part(
            name="moe.combine",
            forward=(*local_copy("moe.unpermute", 1, True), *message("moe.combine", 1, behind(lo, FC2))),
            backward_input=(
                *message("moe.combine.bwd", 1, behind(lo, FC2_BACKWARD)),
                *local_copy("moe.unpermute.bwd", 1, False),
            ),
            tags=MOE,
        )
        return (prepare, dispatch), combine


def _other_nodes(moe: MoE, lo: Rank) -> float:
    """Expected nodes other than its own that one token reaches; expert ranks of a node are contiguous."""
    ranks = lo.recipe.ep * lo.recipe.etp
    nodes = ceil(ranks / lo.node_ranks)
    if nodes == 1 or moe.num_experts % nodes:
        return 0.0 if nodes == 1 else distinct_destinations(moe, lo.recipe.ep) * (1 - lo.node_ranks / ranks)
    return distinct_destinations(moe, nodes) * (1 - 1 / nodes)
