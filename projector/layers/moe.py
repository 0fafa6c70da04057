"""A mixture-of-experts feed-forward: router, dispatch, grouped GEMMs, combine, shared experts.

Kernels counted from NVIDIA/Megatron-LM@d98e8a64dd core/transformer/moe/{moe_layer,experts,shared_experts}.py.
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers.grouped import grouped
from projector.layers.linear import Linear, linear
from projector.layers.local import LayerView
from projector.layers.mlp import activation, feed_forward, host_work
from projector.layers.norms import norm, residual, sandwich
from projector.layers.router import router
from projector.mechanisms.dispatch.exchange import MOE
from projector.mechanisms.dispatch.routing import Routed
from projector.operators.module import Module, function
from projector.operators.saved import Saved, Transient
from projector.operators.types import Operator, Stream
from projector.operators.weights import Weight
from projector.parameter import parameter
from projector.workload.model import MoE


def moe_layer(moe: MoE, view: LayerView) -> tuple[Module, ...]:
    """Returns the feed-forward half of an MoE layer, from its norm to the residual addition."""
    inside = replace(view, hidden=moe.moe_latent_size) if moe.moe_latent_size else view
    x = inside.experts
    r = view.execution.dispatch.routed(moe, x)
    dispatch, combine = view.execution.dispatch.parts(moe, r, inside, view.execution.allocator.planned)
    down, up = _latent(moe, view)
    width = -(-moe.moe_ffn_hidden_size // view.recipe.etp)
    gated = view.model.gated_linear_unit
    fc1_widths = (width,) if not gated else (width, width) if view.execution.fusion.expert_gemm_split else (2 * width,)
    experts = (
        _with_buffers(grouped("experts.fc1", fc1_widths, inside.hidden, "experts.in", r, x), width, r, inside),
        _expert_activation(width, r, inside),
        grouped("experts.fc2", (inside.hidden,), width, "experts.act.out", r, x),
    )
    return (
        norm("pre_mlp_norm", view, tags=frozenset({"mlp_norm", "layernorm", "moe_router"})),
        router(moe, view),
        *(each for scope, share in _MODULES.items() for each in host_work(scope, share, view, MOE)),
        *_shared(moe, view),
        *down,
        *dispatch,
        *_padding("moe.pad", r, x),
        *(replace(part, role="experts") for part in view.execution.dispatch.experts(experts, moe, r, inside)),
        *_padding("moe.unpad", r, x),
        *_weighted_output(r, inside),
        combine,
        *up,
        *_identity(moe, view),
        *sandwich("post_mlp_norm", view, reads="latent_up.out" if up else "moe.combine.out"),
        residual("mlp_residual", view),
    )


def _identity(moe: MoE, view: LayerView) -> tuple[Module, ...]:
    """Returns experts that return their input: it times the sum of their weights, added (transformers 5.23.0
    models/longcat_flash/modeling_longcat_flash.py, ``identity_expert``). Backward: gradients of input and weights."""
    if not moe.zero_expert_num:
        return ()
    tensor = view.act * view.hidden * view.shard_tokens
    saves = (Saved("zero_experts.in", tensor, storage="pre_mlp_norm.out", input=True),)
    return (function("zero_experts", tensor, (2, 1, 1), (3, 1, 1), saves=saves, tags=MOE),)


def _latent(moe: MoE, view: LayerView) -> tuple[tuple[Module, ...], tuple[Module, ...]]:
    """Returns the projections into the width in which experts work and out of it, whole on every tensor-parallel rank, on
    its shard of the sequence (NVIDIA/Megatron-LM@d98e8a64dd core/transformer/moe/moe_layer.py, ``fc1_latent_proj``)."""
    if not moe.moe_latent_size:
        return (), ()
    tags = MOE | {"moe_latent"}
    # 4-bit recipes leave these projections in 16 bits (NVIDIA-NeMo/Nemotron@e27b371 docs/nemotron/super3/pretrain.md)
    if view.cast_recipe == "nvfp4":
        view = replace(view, linear_dtype=view.dtype, scaling="", cast_recipe="", gathered=view.act)
    latent, h, rows = moe.moe_latent_size, view.hidden, view.shard_tokens
    down = Linear("latent_down", (latent,), h, rows, reads="pre_mlp_norm.out")
    up = Linear("latent_up", (h,), latent, rows, reads="moe.combine.out")
    return (linear(down, view, tags),), (linear(up, view, tags),)


#: Shares of the host cost of an MoE layer's modules, by what a graph may replay: routing with its statistics, the counts
#: before the exchange, dispatcher with experts.
_MODULES = parameter(
    {"moe_router": 0.35, "moe_preprocess": 0.15, "moe": 0.5}, kind="assumed", source="the number of calls in each"
)


def _weighted_output(r: Routed, view: LayerView) -> tuple[Module, ...]:
    """Multiplies what experts return by its probability, where their activation does not: one product in 16 bits
    (transformers models/qwen3_moe) or in one kernel, else cast, product in fp32, cast (pytorch/torchtitan@b39377f9f
    torchtitan/models/moe/moe.py, ``score_before_experts`` false). Backward the same and a sum for the gradient of the
    probability, which needs the product's input."""
    precision = view.execution.fusion.expert_output_weighted
    if not precision:
        return ()
    elements, cast = r.sent * view.hidden, precision == "fp32" and not view.compiled
    costs = ((10.0, 10.0, 3), (18.0, 10.0, 5)) if cast else ((2.0, 2.0, 1), (4.0, 2.0, 1 if view.compiled else 2))
    saves = (Saved("moe.weighted.in", (4.0 if cast else view.act) * elements),)
    return (function("moe.weighted", elements, *costs, saves=saves, tags=MOE),)


def _with_buffers(part: Module, width: int, r: Routed, view: LayerView) -> Module:
    """Returns the first linear ``part`` with its moment in one compiled step: beside the exchange's buffers the
    gradients of its products (the activation is gone) and one input gradient for each."""
    if not view.execution.allocator.planned:
        return part
    products = 2 if view.model.gated_linear_unit else 1
    inputs = products if view.execution.fusion.expert_gemm_split else 1
    alive = (products - 1) * view.act * r.held * width + inputs * view.act * r.held * view.hidden
    alive += view.execution.dispatch.backward_buffers(r, view, planned=True)
    return replace(part, backward_transient=Transient("moe_backward", alive))


def _expert_activation(width: int, r: Routed, view: LayerView) -> Module:
    """Returns activation times router probability, one kernel for all experts unless they run one after the other."""
    tags, reads = MOE | {"moe_act", "fused_group_mlp"}, "experts.fc1.out"
    part = _clamped(
        activation(
            "experts.act",
            width,
            r.held,
            view,
            tags,
            reads=reads,
            weighted=not view.execution.fusion.expert_output_weighted,
        ),
        width,
        r,
        view,
    )
    if not view.execution.allocator.planned:
        # the experts' output gradient, the activation's input and output gradients
        halves = (2 if view.model.gated_linear_unit else 1) * view.act * r.held * width
        moment = Transient("moe_backward", view.act * r.held * view.hidden + halves)
        part = replace(part, backward_transient=moment)
    if view.execution.kernels.grouped_by(view.recipe) != "loop":
        return part
    return replace(part, forward=_times(part.forward, r.experts), backward_input=_times(part.backward_input, r.experts))


def _clamped(part: Module, width: int, r: Routed, view: LayerView) -> Module:
    """Adds clamps before the activation, in eager mode (NVIDIA/Megatron-LM core/fusions/fused_bias_geglu.py,
    ``weighted_bias_quick_geglu_impl``): each half of the rows is clamped where it lies, the halves are concatenated.

    Backward, an element of either half: the first is compared (read, a byte written) and its gradient selected (that
    byte and itself read, written); the second is compared twice and the two answers joined first. Then both gradients
    are concatenated (ATen's ``clamp_backward``; halves of rows are strided, answers are not).
    """
    if view.model.activation_func_clamp_value is None or view.compiled or view.execution.fusion.expert_bias:
        return part
    half, flags = view.act * width * r.held, 1.0 * width * r.held
    whole = 2 * half
    forward = (
        Stream("experts.clamp", "strided", whole, whole, launches=2),
        Stream("experts.clamp.cat", "elementwise", whole, whole),
    )
    back = (
        Stream("experts.clamp.bwd", "strided", 3 * half + 2 * (half + flags), 3 * flags + 2 * half, launches=5),
        Stream("experts.clamp.cat.bwd", "elementwise", whole + 2 * flags, whole + flags, launches=2),
    )
    return replace(part, forward=(*forward, *part.forward), backward_input=(*part.backward_input, *back))


def _times(ops: tuple[Operator, ...], calls: int) -> tuple[Operator, ...]:
    return tuple(replace(op, launches=op.launches * calls) for op in ops)


def _padding(name: str, r: Routed, view: LayerView) -> tuple[Module, ...]:
    """Rounds rows per expert up for quantised GEMMs: a copy in and out, unless the dispatcher or the kernel does without."""
    fused = view.execution.kernels.grouped_by(view.recipe) == "fused"
    if r.rows == r.received or fused or view.execution.dispatch.pads:
        return ()
    read, write = (r.received, r.rows) if name == "moe.pad" else (r.rows, r.received)
    return (function(name, view.act * view.hidden, (read, write, 1), (write, read, 1), "permute", tags=MOE),)


def _shared(moe: MoE, view: LayerView) -> tuple[Module, ...]:
    """Returns the experts that every token visits: a dense network over tensor parallelism, its gate, the addition."""
    if not moe.moe_shared_expert_intermediate_size:
        return ()
    tags = MOE | {"shared_experts"}
    tensor = view.act * view.hidden * view.shard_tokens
    add = 2 if moe.moe_shared_expert_gate else 1  # gate: a row product and a multiplication
    parts = feed_forward("shared.", moe.moe_shared_expert_intermediate_size, view, tags, after_norm=False)
    # backward, gradients of the routed and the shared path meet at the norm's output
    total = function(
        "shared.add",
        tensor,
        (2 * add, add, add),
        (2 * add, add, add),
        weights=(Weight("shared.gate", view.hidden),) if moe.moe_shared_expert_gate else (),
        saves=(Saved("shared.gated", tensor, "shared.fc2.out", input=True),) if moe.moe_shared_expert_gate else (),
        tags=tags,
    )
    return tuple(replace(part, role="shared_experts") for part in (*parts, total))
