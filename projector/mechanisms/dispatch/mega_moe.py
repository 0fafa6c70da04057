"""MegaMoE (AMD-AGI/Primus-Turbo@19fe104 primus_turbo/flydsl/mega): the exchange inside the products.

Primus has it under ``use_turbo_mega_moe``. Compute units of one kernel are divided by role: some store tokens into the
memory of their peers, others multiply the tiles that have landed. Dispatch shares its kernel with the first linear, combine
with the second; backward they swap roles. Under ideal overlap a stage takes max(exchange, products); its authors measure 81
to 95 % of that on DeepSeek-V3. Peers are reached by memory shared inside a node. Copies of a token are summed where they
were computed, and the rows that each rank sent back once more at the token's origin, after the last of them.

Nothing waits for the router, so every buffer has rows for the worst case: each copy of each token of the group on one
rank, and the padding of every expert (mega/symm_buffer.py, ``get_num_max_pool_tokens``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from projector.dataclass import dataclass
from projector.errors import Unsupported
from projector.mechanisms.dispatch.base import Exchanged, Phases
from projector.mechanisms.dispatch.exchange import PREPROCESS, copy
from projector.mechanisms.dispatch.fused import Fused
from projector.mechanisms.dispatch.routing import Routed
from projector.operators.module import Module
from projector.operators.rank import Rank
from projector.operators.saved import Saved, Transient
from projector.parameter import parameter
from projector.size import ceil, least
from projector.workload.model import MoE

_BLOCK = parameter(256, unit="rows", kind="published", source="primus_turbo/flydsl/mega/symm_buffer.py, BLOCK_M")
_INDICES = parameter(
    16.0,
    unit="B/row",
    kind="published",
    source="there: source rank and slot, weight and gate of a row, four bytes each",
)


@dataclass(frozen=True, kw_only=True)
class MegaMoE(Fused):
    """Rows land where their expert reads them, so nothing is permuted, and the host waits for no count. Of a layer the
    output of its first linear stays; rows are dispatched and activated anew for the weight gradients
    (pytorch/ops/moe/fused_mega_moe.py, ``save_for_backward``)."""

    name: ClassVar[str] = "mega_moe"
    word: ClassVar[str] = "mega_moe"

    def device_bytes(self, view: Rank) -> float:
        """Returns the bytes of the symmetric heap of all layers: rows dispatched forward and backward, combine slots."""
        moe = view.model.moe
        if moe is None or view.recipe.ep == 1:
            return 0.0
        row = view.act * (moe.moe_latent_size or view.hidden)
        return (2 * row + _INDICES) * self._pool(moe, view) + row * view.shard_tokens * moe.computed_topk

    def experts(
        self, parts: tuple[Module, Module, Module], moe: MoE, r: Routed, view: Rank
    ) -> tuple[Module, Module, Module]:
        first, act, second = parts
        wider = self._pool(moe, view) / r.held
        saves = tuple(each._replace(bytes=each.bytes * wider) for each in act.saves if each.input)
        # the gradient of that, and of the activation's output beside the output made again
        made = sum(each.bytes for each in saves) + 2 * wider * sum(each.bytes for each in act.makes)
        moment = Transient("moe_backward", made)
        return (
            replace(first, saves=_gradients(first)),
            replace(act, saves=saves, backward_transient=moment),
            replace(second, saves=_gradients(second)),
        )

    def forward_buffers(self, moe: MoE, r: Routed, view: Rank) -> float:
        return view.act * moe.moe_ffn_hidden_size * self._pool(moe, view) + self.outputs(moe, view)

    def backward_buffers(self, r: Routed, view: Rank, planned: bool) -> float:
        return 0.0  # gradients of rows land in the heap

    def _pool(self, moe: MoE, view: Rank) -> int:
        """Returns the rows of a buffer."""
        here = moe.num_experts // view.recipe.ep
        landing = view.recipe.ep * view.shard_tokens * least(ceil(moe.computed_topk), here)
        return ceil((landing + here * (_BLOCK - 1)) / _BLOCK) * _BLOCK

    def exchanged(self, moe: MoE, r: Routed, view: Rank) -> Exchanged:
        if view.recipe.ep * view.recipe.etp > view.node_ranks:
            raise Unsupported("MegaMoE: its peers share the memory of one node")
        landed = self.arrived(moe, r, view)
        prepare = Module("moe.layout", forward=self.layout(moe, r, view), tags=PREPROCESS)
        dispatch = Phases(
            forward=self.message("moe.dispatch", moe, r, view, 0, ("experts.fc1",)),
            backward=(
                *self.message("moe.dispatch.bwd", moe, r, view, 0, ("experts.fc1.dgrad",)),
                copy("moe.permute.bwd", "permute", landed, r.tokens, 1, view),
            ),
        )
        combine = Phases(
            forward=(
                *self.message("moe.combine", moe, r, view, 0, ("experts.fc2",)),
                copy("moe.unpermute", "permute", landed, r.tokens, 1, view),
            ),
            backward=self.message("moe.combine.bwd", moe, r, view, 0, ("experts.fc2.dgrad",)),
        )
        return (prepare,), dispatch, combine


def _gradients(part: Module) -> tuple[Saved, ...]:
    """Returns everything that a linear saves except its input."""
    return tuple(each for each in part.saves if not each.input)
