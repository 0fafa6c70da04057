"""The base of all dispatchers: how many rows there are, how they travel, and what lives beside them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from projector.dataclass import dataclass
from projector.mechanisms.dispatch.exchange import MOE
from projector.mechanisms.dispatch.routing import Routed, routed
from projector.mechanisms.strategy import Strategy
from projector.operators.module import Module
from projector.operators.rank import Rank
from projector.operators.saved import Saved, Transient
from projector.operators.types import Operator
from projector.workload.model import MoE
from projector.workload.recipe import Recipe


class Phases(NamedTuple):
    """The operators of one direction of the exchange of tokens, ``forward`` and ``backward``."""

    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]


Exchanged = tuple[tuple[Module, ...], Phases, Phases]
"""The modules before the exchange of tokens, the dispatch to experts, and the combine of what they return."""


@dataclass(frozen=True, kw_only=True)
class Dispatch(Strategy, ABC):
    """How tokens reach experts. ``dispersion``: coefficient of variation of the loads of experts where routing is not
    forced; ``real_data_dispersion``: the same on real text, at the start of a training or of a fine-tuning. ``masks``:
    products with masks carry tokens to the fixed slots of a capacity factor. ``static_shapes``: buffers of dropless experts
    hold the worst case. ``probs``: router probabilities weight the expert activation (else: applied at unpermute).

    Kernels counted from NVIDIA/Megatron-LM@d98e8a64dd core/transformer/moe/{token_dispatcher,fused_a2a,moe_utils}.py,
    buffers from there and from TransformerEngine pytorch/permutation.py.
    """

    word: ClassVar[str]
    """The name in a recipe: a ``moe_token_dispatcher_type``, or a backend of ``flex``."""
    pads: ClassVar[bool] = False
    """Whether the permutation rounds up the rows of each expert for quantised products."""
    dispersion: float = 0.0
    real_data_dispersion: float = 0.0
    masks: bool = False
    static_shapes: bool = False
    probs: bool = True

    def unevenness(self, recipe: Recipe) -> float:
        """Returns the coefficient of variation of the loads of experts: 0 where routing is forced, more on real text
        than on tokens drawn at random, which a router spreads nearly evenly."""
        if recipe.moe_router_force_load_balancing:
            return 0.0
        return self.real_data_dispersion if recipe.mock_data is False else self.dispersion

    def routed(self, moe: MoE, view: Rank) -> Routed:
        """Returns how many rows a rank sends and computes."""
        return routed(moe, view, self.unevenness(view.recipe), self.static_shapes)

    def parts(self, moe: MoE, r: Routed, view: Rank, planned: bool) -> tuple[tuple[Module, ...], Module]:
        """Returns (dispatch, combine): the modules between router and experts and between experts and the sum, with their
        roles, what they save, make and hold for a moment. ``planned``: a compiler places the buffers of the step."""
        before, there, back = self.exchanged(moe, r, view)
        rows = view.act * r.held * view.hidden
        row_map = (
            4.0 * r.tokens * (2 * moe.num_experts + 1)
            if view.recipe.moe_permute_fusion
            else 8.0 * r.tokens * moe.moe_router_topk
        )
        dispatch = Module(
            "moe.dispatch",
            role="dispatch",
            forward=there.forward,
            backward_input=there.backward,
            saves=(Saved("moe.row_map", row_map),),
            makes=(Saved("experts.in", rows),),
            tags=MOE,
        )
        # a combine that multiplies with the probabilities needs the experts' output for their gradient
        output = Saved(name="moe.combine.in", storage="experts.fc2.out", bytes=rows, input=True)
        combine = Module(
            "moe.combine",
            role="combine",
            forward=back.forward,
            backward_input=back.backward,
            saves=() if self.probs else (output,),
            makes=(Saved("moe.combine.out", view.hidden_bytes),),
            forward_transient=Transient("moe_combine_forward", self.forward_buffers(moe, r, view)),
            backward_transient=Transient("moe_backward", self.backward_buffers(r, view, planned)),
            tags=MOE,
        )
        return (*before, dispatch), combine

    @abstractmethod
    def exchanged(self, moe: MoE, r: Routed, view: Rank) -> Exchanged:
        """Returns the modules before the exchange, and what dispatch and combine execute."""

    @abstractmethod
    def forward_buffers(self, moe: MoE, r: Routed, view: Rank) -> float:
        """Returns the bytes alive beside the saved tensors when the experts' outputs are combined."""

    def backward_buffers(self, r: Routed, view: Rank, planned: bool) -> float:
        """Returns the bytes alive in the combine's backward: the unpermuted tokens' gradient, its exchange and its copy."""
        sent, received = self.row_bytes(r, view)
        return self.compiled_buffers(r, view) if planned else sent + 2 * received

    def compiled_buffers(self, r: Routed, view: Rank) -> float:
        """Returns the same in one compiled step: buffers between ranks beside the experts' input gradients."""
        return 2 * sum(self.row_bytes(r, view))

    def ragged(self, recipe: Recipe) -> bool:
        """Returns whether buffers of dropless experts differ in size from micro-batch to micro-batch."""
        return False

    def device_bytes(self, view: Rank) -> float:
        """Returns the bytes of the dispatcher's buffers outside the framework's allocator."""
        return 0.0

    def experts(
        self, parts: tuple[Module, Module, Module], moe: MoE, r: Routed, view: Rank
    ) -> tuple[Module, Module, Module]:
        """Returns first linear, activation and second linear of the experts, with saves as the exchange changes them."""
        return parts

    def row_bytes(self, r: Routed, view: Rank) -> tuple[float, float]:
        """Returns the bytes of a buffer of the sent rows, and of the rows that experts hold."""
        return view.act * r.sent * view.hidden, view.act * r.held * view.hidden

    def outputs(self, moe: MoE, view: Rank) -> float:
        """Returns the bytes of the shared experts' output, if any, and of the unpermuted output."""
        return view.hidden_bytes * (2 if moe.moe_shared_expert_intermediate_size else 1)
