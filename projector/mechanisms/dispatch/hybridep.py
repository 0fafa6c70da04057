"""HybridEP (deepseek-ai/DeepEP, branch hybrid-ep; Megatron-LM core/transformer/moe/fused_a2a.py).

``dispatch_with_permute`` is one call of the host and several kernels: an all-gather of everybody's routing map and a scan
of it (csrc/hybrid_ep/hybrid_ep.cu, ``metadata_preprocessing``), the exchange, and a permutation of what landed
(csrc/hybrid_ep/executor/executor.cu@0237ba62, ``dispatch_postprocess``; ``combine_preprocess`` on the way back). Its
fused variant (``moe_permute_fusion_into_hybridep``) is off by default.
"""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.dispatch.fused import Fused
from projector.mechanisms.dispatch.permutation import copy
from projector.mechanisms.dispatch.routing import Routed
from projector.operators.rank import Rank
from projector.operators.types import Collective, Operator, Stream
from projector.size import least
from projector.workload.model import MoE


@dataclass(frozen=True, kw_only=True)
class HybridEP(Fused):
    """Rows land per token in a buffer for the worst case and are copied to their experts by kernels of its own."""

    name: ClassVar[str] = "hybridep"
    word: ClassVar[str] = "hybridep"
    transport: ClassVar[str] = "hybridep"
    worst_case: ClassVar[bool] = True
    pads: ClassVar[bool] = True  # pad_multiple

    def layout(self, moe: MoE, r: Routed, lo: Rank) -> tuple[Operator, ...]:
        """One byte for each token of the group and each expert, gathered and scanned."""
        ranks = lo.recipe.ep * lo.recipe.etp
        routes = 1.0 * moe.num_experts * r.tokens * ranks
        scan = Stream(name="moe.layout", kind="router", read=routes, write=8.0 * r.tokens * ranks, launches=3)
        if ranks == 1:
            return (scan,)
        group = "ep" if lo.recipe.ep > 1 else "etp"
        return (Collective(name="moe.routes_ag", kind="all_gather", group=group, bytes=routes), scan)

    def weights_bytes(self, moe: MoE, lo: Rank) -> float:
        """A row carries fp32 weights of all experts of its node (``expert_output_prob``)."""
        return 4.0 * moe.num_experts * least(1.0, lo.node_ranks / (lo.recipe.ep * lo.recipe.etp))

    def rows_sorted(self, name: str, landed: float, r: Routed, lo: Rank, launches: int) -> Stream:
        return copy(name, "permute", landed, r.held, least(2, launches), lo)

    def rows_summed(self, name: str, landed: float, r: Routed, lo: Rank) -> Stream:
        return copy(name, "permute", r.held, landed, 1, lo)
