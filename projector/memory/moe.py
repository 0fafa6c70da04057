"""Experts: what a MoE layer saves, and the buffers that are alive at once when it dispatches and combines tokens."""

from __future__ import annotations

from projector.frameworks.types import Resolved
from projector.memory.sizes import Sizes, sizes

__all__ = ["backward_buffers", "forward_buffers", "saved_by_experts"]


def saved_by_experts(resolved: Resolved) -> dict[str, float]:
    """Tensors that router, permutation, experts and shared experts save (the norm before them not included).

    Sources: Megatron-LM core/transformer/moe/{router,moe_utils,token_dispatcher,experts,shared_experts}.py,
    TransformerEngine pytorch/permutation.py.
    """
    workload = resolved.workload
    model, recipe, size = workload.model, workload.recipe, sizes(resolved)
    moe = model.moe
    assert moe is not None
    width = 2 if model.gated_linear_unit else 1
    expert = size.element * size.received * size.expert_ffn
    probabilities = 4.0 if recipe.moe_router_dtype == "fp32" else 2.0
    out = {
        # softmax for the probabilities and again for the auxiliary loss (fp32), two bool maps, held probabilities
        "router": size.shard * moe.num_experts * (4.0 + 4 + 1 + 1 + probabilities)
        + 16.0 * size.shard * moe.moe_router_topk,
        "row_map": 4.0 * size.shard * (2 * moe.num_experts + 1)
        if recipe.moe_permute_fusion
        else 8.0 * size.shard * moe.moe_router_topk,
        "expert_input": size.element * size.received * size.hidden,
        "expert_fc1_out": expert * width,
        "expert_activation_out": expert,
    }
    if not resolved.execution.dispatch_probs:
        out["expert_out"] = size.element * size.received * size.hidden
    if moe.moe_shared_expert_intermediate_size:
        shared = size.element * size.tokens * size.shared_ffn
        out |= {"shared_fc1_out": shared * width, "shared_activation_out": shared}
    return out


def forward_buffers(resolved: Resolved) -> float:
    """Bytes alive beside the saved tensors when the experts' outputs are combined.

    All-to-all: the permuted send buffer, the receive buffer, the unsorted expert output and the result of the
    exchange are local variables of one Python function, then the shared-expert output and the unpermuted output. With
    one local expert nothing is sorted, so the receive buffer is the saved input. DeepEP and HybridEP fuse permutation
    into the exchange (about 2.5 of the four buffers; estimate).
    """
    size, recipe, moe = sizes(resolved), resolved.workload.recipe, resolved.workload.model.moe
    assert moe is not None
    sent, received = _row_bytes(size)
    if resolved.execution.capacity_dispatch == "einsum" and recipe.moe_pad_expert_input_to_capacity:
        return 2 * sent + 2 * received + _masks(resolved)
    outputs = size.hidden_bytes * (2 if moe.moe_shared_expert_intermediate_size else 1)
    kind = recipe.moe_token_dispatcher_type
    if kind == "flex":
        return 1.25 * (sent + received) + outputs
    if kind == "allgather":
        everyone = size.hidden_bytes * recipe.ep * recipe.etp
        return 2 * everyone + received + outputs
    buffers = 2 * sent + 2 * received
    return buffers + outputs - (received if moe.num_experts == recipe.ep else 0.0)


def backward_buffers(resolved: Resolved) -> float:
    """Bytes alive in the backward of the combine or of the expert activation: the gradient of the unpermuted tokens,
    its exchange and its copy; or the experts' output gradient with the activation's input and output gradients."""
    if resolved.execution.planned_arena:
        return _compiled_backward(resolved)
    size = sizes(resolved)
    sent, received = _row_bytes(size)
    width = 2 if resolved.workload.model.gated_linear_unit else 1
    activation = received + width * size.element * size.received * size.expert_ffn
    return max(sent + 2 * received, activation)


def _compiled_backward(resolved: Resolved) -> float:
    """The same in one compiled step: the data gradients of the products that read the expert input.

    Beside the saved input and its products: their gradients (the activation is gone), one input gradient for each
    product, and what carries rows between ranks: two token-sized buffers; for a ragged all-to-all also the receive
    buffer it writes into and its expert-sorted copy (jax.lax.ragged_all_to_all takes an initialised operand), for a
    dispatch by einsum its masks and their gradients, for one by scatter-additions their accumulator.
    """
    execution, recipe, size = resolved.execution, resolved.workload.recipe, sizes(resolved)
    sent, received = _row_bytes(size)
    products = 2 if resolved.workload.model.gated_linear_unit else 1
    inputs = products if execution.expert_gemm_split else 1
    alive = (products - 1) * size.element * size.received * size.expert_ffn + inputs * received
    if recipe.moe_token_dispatcher_type == "flex":
        # DeepEP sends a token once to a rank, however many of its experts want it; one accumulator is alive at a time
        return alive + 2 * size.hidden_bytes + (received if recipe.moe_dispatch_scatter_adds else 0.0)
    alive += 2 * sent
    if recipe.moe_pad_expert_input_to_capacity:
        return alive + (_masks(resolved) if execution.capacity_dispatch == "einsum" else 0.0)
    return alive + 2 * received


def _masks(resolved: Resolved) -> float:
    """Dispatch and combine mask of an einsum dispatch with their gradients: sequence × slots of all experts each."""
    size = sizes(resolved)
    return 4 * size.element * resolved.workload.recipe.seq_length * size.routed


def _row_bytes(size: Sizes) -> tuple[float, float]:
    return size.element * size.routed * size.hidden, size.element * size.received * size.hidden
