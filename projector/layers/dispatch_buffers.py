"""What token dispatch keeps for its backward, and the buffers alive at once when it brings tokens to experts and back.

Sources: Megatron-LM core/transformer/moe/{moe_utils,token_dispatcher}.py, TransformerEngine pytorch/permutation.py.
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers.local import Local
from projector.layers.part import Part
from projector.layers.routing import Routed
from projector.layers.saved import Saved, Transient
from projector.parameter import parameter
from projector.workload.model import MoE

__all__ = ["backward_buffers", "buffered", "forward_buffers"]

_FUSED_EXCHANGE = parameter(
    1.25, kind="assumed", source="DeepEP and HybridEP fuse permutation into the exchange: about 2.5 of the four buffers"
)


def buffered(parts: tuple[Part, ...], combine: Part, moe: MoE, r: Routed, lo: Local) -> tuple[tuple[Part, ...], Part]:
    """Dispatch and combine with what they save, make and hold for a moment."""
    rows = lo.act * r.held * lo.hidden
    row_map = (
        4.0 * r.tokens * (2 * moe.num_experts + 1)
        if lo.recipe.moe_permute_fusion
        else 8.0 * r.tokens * moe.moe_router_topk
    )
    last = replace(
        parts[-1],
        saves=(Saved(name="moe.row_map", bytes=row_map),),
        makes=(Saved(name="experts.in", bytes=rows),),
    )
    # a combine that multiplies with the probabilities needs the experts' output for their gradient
    output = Saved(name="moe.combine.in", storage="experts.fc2.out", bytes=rows, input=True)
    combine = replace(
        combine,
        saves=() if lo.execution.dispatch.probs else (output,),
        makes=(Saved(name="moe.combine.out", bytes=lo.hidden_bytes),),
        forward_transient=Transient(name="moe_combine_forward", bytes=forward_buffers(moe, r, lo)),
        backward_transient=Transient(name="moe_backward", bytes=backward_buffers(r, lo)),
    )
    return (*parts[:-1], last), combine


def forward_buffers(moe: MoE, r: Routed, lo: Local) -> float:
    """Bytes alive beside the saved tensors when the experts' outputs are combined.

    All-to-all: the permuted send buffer, the receive buffer, the unsorted expert output and the result of the
    exchange are local variables of one Python function, then the shared-expert output and the unpermuted output. With
    one local expert nothing is sorted, so the receive buffer is the saved input. DeepEP and HybridEP fuse permutation
    into the exchange.
    """
    sent, received = _row_bytes(r, lo)
    if r.fixed and lo.execution.dispatch.einsum:
        return 2 * sent + 2 * received + _masks(r, lo)
    outputs = lo.hidden_bytes * (2 if moe.moe_shared_expert_intermediate_size else 1)
    kind = lo.recipe.moe_token_dispatcher_type
    if kind == "flex":
        return _FUSED_EXCHANGE * (sent + received) + outputs
    if kind == "allgather":
        return 2 * lo.hidden_bytes * lo.recipe.ep * lo.recipe.etp + received + outputs
    return 2 * sent + 2 * received + outputs - (received if moe.num_experts == lo.recipe.ep else 0.0)


def backward_buffers(r: Routed, lo: Local) -> float:
    """Bytes alive in the backward of the combine: the gradient of the unpermuted tokens, its exchange and its copy.

    In one compiled step, what carries rows between ranks beside the experts' input gradients: two token-sized buffers; for a
    ragged all-to-all also the receive buffer it writes into and its expert-sorted copy (jax.lax.ragged_all_to_all takes an
    initialised operand), for a dispatch by einsum its masks and their gradients, for one by scatter-additions their
    accumulator.
    """
    sent, received = _row_bytes(r, lo)
    if not lo.execution.allocator.planned:
        return sent + 2 * received
    if lo.recipe.moe_token_dispatcher_type == "flex":
        # DeepEP sends a token once to a rank, however many of its experts want it; one accumulator is alive at a time
        return 2 * lo.hidden_bytes + (received if lo.recipe.moe_dispatch_scatter_adds else 0.0)
    if r.fixed:
        return 2 * sent + (_masks(r, lo) if lo.execution.dispatch.einsum else 0.0)
    return 2 * sent + 2 * received


def _masks(r: Routed, lo: Local) -> float:
    """Dispatch and combine mask of an einsum dispatch with their gradients: sequence × slots of all experts each."""
    return 4 * lo.act * lo.recipe.seq_length * r.sent


def _row_bytes(r: Routed, lo: Local) -> tuple[float, float]:
    return lo.act * r.sent * lo.hidden, lo.act * r.held * lo.hidden
