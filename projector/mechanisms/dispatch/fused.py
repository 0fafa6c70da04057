"""Dispatchers with exchange kernels of their own: one message for each rank and node that a token reaches, sums on the
way back (Megatron-LM core/transformer/moe/{token_dispatcher,fused_a2a}.py)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.dispatch.base import Dispatch, Exchanged, Phases
from projector.mechanisms.dispatch.exchange import (
    FC1,
    FC1_BACKWARD,
    FC2,
    FC2_BACKWARD,
    PREPROCESS,
    copy,
    counts_read,
    hiding_operators,
    scatter_adds,
    sum_copies,
)
from projector.mechanisms.dispatch.routing import Routed, distinct_destinations
from projector.operators.module import Module
from projector.operators.rank import Rank
from projector.operators.types import Collective, Operator, Stream
from projector.parameter import parameter
from projector.size import ceil, least, most, per_row
from projector.workload.model import MoE

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
    """A dispatcher that a recipe calls ``flex``."""

    transport: ClassVar[str] = "deepep"
    """The transport of its messages."""
    worst_case: ClassVar[bool] = False
    """Whether rows land in a buffer for the worst case, so that the host asks for their number after the exchange."""

    def layout(self, moe: MoE, r: Routed, view: Rank) -> tuple[Operator, ...]:
        """Returns the kernels that compute, before the exchange, where each token goes."""
        routes = 8.0 * moe.num_experts * r.tokens
        return (Stream("moe.layout", "router", routes, 8.0 * r.tokens, launches=2),)

    def weights_bytes(self, moe: MoE, view: Rank) -> float:
        """Returns the bytes of routing weights (and their gradients) that travel with a row."""
        return 0.0

    def rows_sorted(self, name: str, landed: float, r: Routed, view: Rank, launches: int) -> Stream:
        """Returns the copy of every landed row to each expert that wants it."""
        return copy(name, "permute", landed, r.held, launches, view)

    def rows_summed(self, name: str, landed: float, r: Routed, view: Rank) -> Stream:
        """Returns the sum of the copies of every landed row."""
        return sum_copies(name, r.held, landed, 1, view)

    def device_bytes(self, view: Rank) -> float:
        return _DEVICE if view.recipe.ep > 1 else 0.0

    def forward_buffers(self, moe: MoE, r: Routed, view: Rank) -> float:
        return _FUSED_EXCHANGE * sum(self.row_bytes(r, view)) + self.outputs(moe, view)

    def compiled_buffers(self, r: Routed, view: Rank) -> float:
        """Returns the bytes where a token is sent once to a rank, however many of its experts want it; of
        scatter-additions one accumulator is alive at a time."""
        _, received = self.row_bytes(r, view)
        return 2 * view.hidden_bytes + (received if view.recipe.moe_dispatch_scatter_adds else 0.0)

    def arrived(self, moe: MoE, r: Routed, view: Rank) -> float:
        """Returns the rows that reach a rank: a token once, however many of its experts want it."""
        everyone = r.tokens * view.recipe.ep * view.recipe.etp
        copies = most(view.recipe.etp, r.received / r.sent)
        return least(everyone, r.tokens * distinct_destinations(moe, view.recipe.ep) * copies)

    def other_nodes(self, moe: MoE, view: Rank) -> float:
        """Returns the expected nodes other than its own that a token reaches; expert ranks of a node are contiguous."""
        return per_row(partial(self._other_nodes, moe, view), view.recipe.ep, view.recipe.etp)

    def _other_nodes(self, moe: MoE, view: Rank, ep: int, etp: int) -> float:
        ranks = ep * etp
        nodes = ceil(ranks / view.node_ranks)
        if nodes == 1 or moe.num_experts % nodes:
            return 0.0 if nodes == 1 else distinct_destinations(moe, ep) * (1 - view.node_ranks / ranks)
        return distinct_destinations(moe, nodes) * (1 - 1 / nodes)

    def message(
        self, name: str, moe: MoE, r: Routed, view: Rank, launches: int, beside: tuple[str, ...], weights: float = 0.0
    ) -> tuple[Collective, ...]:
        """Returns the exchange of the arriving rows, ``weights`` bytes with each, hidden behind the operators ``beside``."""
        if view.recipe.ep * view.recipe.etp == 1:
            return ()
        row, rows = view.act * view.hidden + weights, self.arrived(moe, r, view)
        return (
            Collective(
                name,
                "all_to_all",
                "ep" if view.recipe.ep > 1 else "etp",
                row * rows,
                hides_behind=beside,
                transport=self.transport,
                nodes_bytes=row * r.tokens * self.other_nodes(moe, view),
                rows=rows,
                launches=launches,
            ),
        )

    def exchanged(self, moe: MoE, r: Routed, view: Rank) -> Exchanged:
        arrived = self.arrived(moe, r, view)
        landed = r.tokens * view.recipe.ep * view.recipe.etp if r.held > r.rows else arrived
        weights = self.weights_bytes(moe, view)

        def message(name: str, launches: int, beside: tuple[str, ...], weights: float) -> tuple[Collective, ...]:
            return self.message(name, moe, r, view, launches, beside, weights)

        # DeepEP's host spins on the count of rows that will arrive before it launches the dispatch (csrc/deep_ep.cpp);
        # with a receive buffer for the worst case (stage 2, and HybridEP) the host asks after it, at stage 3 never
        late = self.worst_case or (view.recipe.sync_free_stage or 0) >= 2
        wait = counts_read(r, view, 3)
        prepare = Module("moe.layout", forward=self.layout(moe, r, view), tags=PREPROCESS)
        dispatch = Phases(
            forward=(
                *(() if late else wait),
                *message("moe.dispatch", 2, hiding_operators(view, FC1), weights),
                *(wait if late else ()),
                self.rows_sorted("moe.permute", landed, r, view, 5),
            ),
            backward=(
                self.rows_summed("moe.permute.bwd", landed, r, view),
                *scatter_adds(r, view),
                *message("moe.dispatch.bwd", 1, hiding_operators(view, FC1_BACKWARD), weights),
            ),
        )
        combine = Phases(
            forward=(
                self.rows_summed("moe.unpermute", landed, r, view),
                *message("moe.combine", 1, hiding_operators(view, FC2), 0.0),
            ),
            backward=(
                *message("moe.combine.bwd", 1, hiding_operators(view, FC2_BACKWARD), 0.0),
                self.rows_sorted("moe.unpermute.bwd", landed, r, view, 1),
            ),
        )
        return (prepare,), dispatch, combine


# DeepEP (deepseek-ai/DeepEP@dd758ca csrc/deep_ep.cpp): rows land per token, then their copies are sorted by expert.
@dataclass(frozen=True, kw_only=True)
class DeepEP(Fused):
    """The framework permutes tokens, with its fused kernel or without."""

    name: ClassVar[str] = "deepep"
    word: ClassVar[str] = "deepep"


# HybridEP (deepseek-ai/DeepEP, branch hybrid-ep; Megatron-LM core/transformer/moe/fused_a2a.py).
#
# ``dispatch_with_permute`` is one call of the host and several kernels: an all-gather of everybody's routing map and a scan
# of it (csrc/hybrid_ep/hybrid_ep.cu, ``metadata_preprocessing``), the exchange, and a permutation of what landed
# (csrc/hybrid_ep/executor/executor.cu@0237ba62, ``dispatch_postprocess``; ``combine_preprocess`` on the way back). Its
# fused variant (``moe_permute_fusion_into_hybridep``) is off by default.
@dataclass(frozen=True, kw_only=True)
class HybridEP(Fused):
    """Rows land per token in a buffer for the worst case, and kernels of the library copy them to their experts."""

    name: ClassVar[str] = "hybridep"
    word: ClassVar[str] = "hybridep"
    transport: ClassVar[str] = "hybridep"
    worst_case: ClassVar[bool] = True
    pads: ClassVar[bool] = True  # pad_multiple

    def layout(self, moe: MoE, r: Routed, view: Rank) -> tuple[Operator, ...]:
        """Returns the gather and scan of one byte for each token of the group and each expert."""
        ranks = view.recipe.ep * view.recipe.etp
        routes = 1.0 * moe.num_experts * r.tokens * ranks
        scan = Stream("moe.layout", "router", routes, 8.0 * r.tokens * ranks, launches=3)
        if ranks == 1:
            return (scan,)
        group = "ep" if view.recipe.ep > 1 else "etp"
        return (Collective("moe.routes_ag", "all_gather", group, routes), scan)

    def weights_bytes(self, moe: MoE, view: Rank) -> float:
        """Returns the bytes of fp32 weights of all experts of a node, which a row carries (``expert_output_prob``)."""
        return 4.0 * moe.num_experts * least(1.0, view.node_ranks / (view.recipe.ep * view.recipe.etp))

    def rows_sorted(self, name: str, landed: float, r: Routed, view: Rank, launches: int) -> Stream:
        return copy(name, "permute", landed, r.held, least(2, launches), view)

    def rows_summed(self, name: str, landed: float, r: Routed, view: Rank) -> Stream:
        return copy(name, "permute", r.held, landed, 1, view)
