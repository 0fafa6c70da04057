"""A mixture-of-experts feed-forward: router, dispatch, grouped GEMMs, combine, shared experts.

Kernels counted from NVIDIA/Megatron-LM@d98e8a64dd core/transformer/moe/{moe_layer,experts,shared_experts}.py.
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers.dispatch import dispatch_combine
from projector.layers.dispatch_buffers import backward_buffers
from projector.layers.linear import accumulation
from projector.layers.local import Local
from projector.layers.mlp import activation, feed_forward
from projector.layers.norms import norm, residual, sandwich
from projector.layers.part import Part
from projector.layers.quantise import cast, operand_bytes, weight_cast
from projector.layers.router import router
from projector.layers.routing import Routed, routed
from projector.layers.saved import Saved, Transient
from projector.layers.types import Gemm, GroupedGemm, HostWork, Operator, Stream
from projector.layers.weights import Weight
from projector.parameter import parameter
from projector.workload.model import MoE

__all__ = ["moe_layer"]

MOE = frozenset({"moe"})
_GROUPED_BACKENDS = ("fused", "multi_stream", "loop", "masked")
# ``masked``: a compiler without a grouped kernel multiplies the whole buffer with every expert and masks the rest
# (JAX's default lowering of jax.lax.ragged_dot on GPUs)


def moe_layer(moe: MoE, lo: Local) -> tuple[Part, ...]:
    """The feed-forward half of an MoE layer, from its norm to the residual addition."""
    x = lo.experts
    r = routed(moe, x)
    dispatch, combine = dispatch_combine(moe, r, lo)
    width = -(-moe.moe_ffn_hidden_size // lo.recipe.etp)
    gated = lo.model.gated_linear_unit
    fc1_widths = (width,) if not gated else (width, width) if lo.execution.fusion.expert_gemm_split else (2 * width,)
    return (
        norm("pre_mlp_norm", lo.hidden, lo.shard_tokens, lo, tags=frozenset({"mlp_norm", "layernorm", "moe_router"})),
        router(moe, lo),
        *_modules(lo),
        *_shared(moe, lo),
        *dispatch,
        *_padding("moe.pad", r, x),
        _first(_grouped("experts.fc1", fc1_widths, lo.hidden, "experts.in", r, x), width, r, lo),
        _expert_activation(width, r, lo),
        _grouped("experts.fc2", (lo.hidden,), width, "experts.act.out", r, x),
        *_padding("moe.unpad", r, x),
        combine,
        *sandwich("post_mlp_norm", lo, reads="moe.combine.out"),
        residual("mlp_residual", lo),
    )


#: Shares of the host cost of an MoE layer's modules, by what a graph may replay: routing with its statistics, the counts
#: before the exchange, dispatcher with experts.
_MODULES = parameter(
    {"moe_router": 0.35, "moe_preprocess": 0.15, "moe": 0.5}, kind="assumed", source="the number of calls in each"
)


def _modules(lo: Local) -> tuple[Part, ...]:
    """Host work of the Python modules and autograd functions around the kernels of an MoE layer."""
    total = lo.execution.runtime.moe_layer_us
    return tuple(
        Part(
            name=f"{scope}.modules",
            forward=(HostWork(name=f"{scope}.modules", microseconds=share * total),),
            backward_input=(HostWork(name=f"{scope}.modules.bwd", microseconds=share * total),),
            tags=MOE | {scope},
        )
        for scope, share in _MODULES.items()
        if total
    )


def _backend(lo: Local) -> str:
    """The recipe's choice of grouped GEMM where it is a kernel family, else the framework's; from sync-free stage 2 on
    one kernel that reads its sizes on the device (AMD-AGI/Primus primus/backends/megatron/core/extensions)."""
    if (lo.recipe.sync_free_stage or 0) >= 2:
        return "fused"
    if (
        lo.recipe.moe_grouped_gemm == "legacy"
    ):  # tgale96/grouped_gemm, ROCm's too: an expert after another on a few streams
        return "multi_stream"
    for word in (lo.recipe.moe_grouped_gemm, lo.execution.kernels.grouped):
        if word in _GROUPED_BACKENDS:
            return str(word)
    return "multi_stream"


def _grouped(name: str, outputs: tuple[int, ...], inputs: int, reads: str, r: Routed, lo: Local) -> Part:
    """One linear of all local experts on storage ``reads``; ``outputs`` has two widths where gate and up are separate
    products."""
    backend = _backend(lo)
    if backend == "masked":
        return _remembering(_masked(name, outputs, inputs, r, lo), sum(outputs), inputs, reads, r, lo)
    launches = 1 if backend == "fused" else r.experts
    elements = float(sum(outputs) * inputs * r.experts)
    names = (name,) if len(outputs) == 1 else tuple(f"{name}.{i}" for i in range(len(outputs)))

    def gemm(suffix: str, i: int, n: int, k: int, layout: str) -> GroupedGemm:
        return GroupedGemm(
            name=f"{names[i]}{suffix}",
            groups=r.experts,
            rows=r.rows,
            n=n,
            k=k,
            dtype=lo.linear_dtype,
            scaling=lo.scaling,
            layout=layout,
            out_bytes=lo.act,
            backend=backend,
            launches=launches,
            rows_per_group=r.rows_per_expert,
        )

    weight: list[Operator] = []
    for i, n in enumerate(outputs if lo.trainable else ()):
        out_bytes, accumulate, add = accumulation(f"{names[i]}.wgrad", n * inputs * r.experts, lo, r.experts)
        weight += [replace(gemm(".wgrad", i, n, inputs, "NT"), out_bytes=out_bytes, accumulate=accumulate), *add]
    backward: list[Operator] = [*_bias_backward(f"{name}.bias.bwd", r.rows * sum(outputs), r, lo)]
    backward += [*cast(f"{name}.grad_cast", r.rows * sum(outputs), lo)]
    backward += [gemm(".dgrad", i, inputs, n, "NN") for i, n in enumerate(outputs)]
    if len(outputs) > 1:
        tensor = lo.act * r.held * inputs
        backward.append(Stream(name=f"{name}.dgrad_add", kind="elementwise", read=2 * tensor, write=tensor))
    part = Part(
        name=name,
        forward=(
            *cast(f"{name}.cast", r.rows * inputs, lo),
            *weight_cast(f"{name}.weight_cast", elements, lo),
            *(gemm("", i, n, inputs, "TN") for i, n in enumerate(outputs)),
            *_bias(f"{name}.bias", r.rows * sum(outputs), r, lo),
        ),
        backward_input=tuple(backward),
        backward_weight=tuple(weight),
        weights=_weights(name, outputs, inputs, r, lo),
        tags=MOE,
    )
    return _remembering(part, sum(outputs), inputs, reads, r, lo)


def _remembering(part: Part, width: int, inputs: int, reads: str, r: Routed, lo: Local) -> Part:
    """``part`` with what it saves, as any linear: its input, quantised where the products are, and while a weight gradient
    waits the gradient of its output; frozen experts neither."""
    output = lo.act * r.held * width
    saves: tuple[Saved, ...] = ()
    if lo.trainable:
        last, into = "weight_gradient", operand_bytes(lo) * r.held * inputs
        saves = (
            Saved(name=f"{part.name}.in", storage=reads, bytes=into, until=last, input=True),
            Saved(name=f"{part.name}.out_grad", bytes=output, since="backward", until=last),
        )
    first = part.name == "experts.fc1"
    tags = {"mlpwi", "expert_fc1", "fused_group_mlp"} if first else {"mlpwo"}
    return replace(part, saves=saves, makes=(Saved(name=f"{part.name}.out", bytes=output),), tags=MOE | tags)


def _first(part: Part, width: int, r: Routed, lo: Local) -> Part:
    """``part``, the first linear, in one compiled step: beside the buffers of the exchange the gradients of its products
    (the activation is gone) and one input gradient for each."""
    if not lo.execution.allocator.planned:
        return part
    products = 2 if lo.model.gated_linear_unit else 1
    inputs = products if lo.execution.fusion.expert_gemm_split else 1
    alive = (products - 1) * lo.act * r.held * width + inputs * lo.act * r.held * lo.hidden
    return replace(part, backward_transient=Transient(name="moe_backward", bytes=alive + backward_buffers(r, lo)))


def _weights(name: str, outputs: tuple[int, ...], inputs: int, r: Routed, lo: Local) -> tuple[Weight, ...]:
    split = "columns" if name.endswith("fc2") else "rows"
    matrix = Weight(
        name=name, rows=sum(outputs), columns=inputs, count=r.experts, role="linear", expert=True, split=split
    )
    bias = Weight(name=f"{name}.bias", rows=sum(outputs), count=r.experts, expert=True)
    return (matrix, bias) if lo.model.add_bias_linear else (matrix,)


def _bias(name: str, elements: float, r: Routed, lo: Local) -> tuple[Stream, ...]:
    """Biases of the second linear of experts, times the probability of each row, outside the products.

    NVIDIA/Megatron-LM core/transformer/moe/experts.py ``TEGroupedMLP._apply_bias``: for each expert bias · probability
    is written in fp32 (4 bytes an element), added to the rows (2 + 4 read, 4 written), the experts concatenated (4, 4)
    and cast down (4, 2). The first linear adds its biases in the epilogue of the product.
    """
    if not _weighted_bias(name, lo):
        return ()
    return (
        Stream(name=name, kind="elementwise", read=14.0 * elements, write=14.0 * elements, launches=2 * r.experts + 2),
    )


def _bias_backward(name: str, elements: float, r: Routed, lo: Local) -> tuple[Stream, ...]:
    """Gradients of that: cast up (2, 4) and down again for the rows (4, 2), products with the probability (4, 4) and
    the bias (4, 4), each summed (4 + 4), split gradients concatenated (2, 2). First linear: one sum over its rows."""
    if not lo.model.add_bias_linear:
        return ()
    if not _weighted_bias(name, lo):
        return (Stream(name=name, kind="reduce", read=lo.act * elements, write=0.0, launches=r.experts),)
    return (
        Stream(name=name, kind="elementwise", read=24.0 * elements, write=16.0 * elements, launches=6 * r.experts + 2),
    )


def _weighted_bias(name: str, lo: Local) -> bool:
    return lo.model.add_bias_linear and not lo.execution.fusion.expert_bias and name.startswith("experts.fc2")


def _masked(name: str, outputs: tuple[int, ...], inputs: int, r: Routed, lo: Local) -> Part:
    """The same linear as products of all held rows with each expert's weights: ``experts`` times the work."""

    def gemm(suffix: str, i: int, m: int, n: int, k: int, layout: str) -> Gemm:
        label = f"{name}.{i}{suffix}"
        return Gemm(
            name=label, m=m, n=n, k=k, batch=r.experts, dtype=lo.linear_dtype, scaling=lo.scaling, layout=layout
        )

    rows = range(len(outputs))
    return Part(
        name=name,
        forward=tuple(gemm("", i, r.held, outputs[i], inputs, "TN") for i in rows),
        backward_input=tuple(gemm(".dgrad", i, r.held, inputs, outputs[i], "NN") for i in rows),
        backward_weight=tuple(gemm(".wgrad", i, outputs[i], inputs, r.held, "NT") for i in rows),
        weights=_weights(name, outputs, inputs, r, lo),
        tags=MOE,
    )


def _expert_activation(width: int, r: Routed, lo: Local) -> Part:
    """Activation times the router's probability, in one kernel for all experts unless they run one after the other."""
    tags, reads = MOE | {"moe_act"}, "experts.fc1.out"
    part = _clamped(activation("experts.act", width, r.held, lo, tags, reads=reads, weighted=True), width, r, lo)
    if not lo.execution.allocator.planned:
        # the experts' output gradient, the activation's input and output gradients
        halves = (2 if lo.model.gated_linear_unit else 1) * lo.act * r.held * width
        moment = Transient(name="moe_backward", bytes=lo.act * r.held * lo.hidden + halves)
        part = replace(part, backward_transient=moment)
    if _backend(lo) != "loop":
        return part
    return replace(
        part,
        forward=_times(part.forward, r.experts),
        backward_input=_times(part.backward_input, r.experts),
    )


def _clamped(part: Part, width: int, r: Routed, lo: Local) -> Part:
    """Clamps before the activation, in eager mode: each half clamped, the halves concatenated; backward masks each half
    (gradient and input read, gradient written) and concatenates (NVIDIA/Megatron-LM core/fusions/fused_bias_geglu.py,
    ``weighted_bias_quick_geglu_impl``)."""
    if lo.model.activation_func_clamp_value is None or lo.compiled or lo.execution.fusion.expert_bias:
        return part
    tensor = lo.act * 2 * width * r.held
    clamp = Stream(name="experts.clamp", kind="elementwise", read=2 * tensor, write=2 * tensor, launches=3)
    back = Stream(name="experts.clamp.bwd", kind="elementwise", read=3 * tensor, write=2 * tensor, launches=5)
    return replace(part, forward=(clamp, *part.forward), backward_input=(*part.backward_input, back))


def _times(ops: tuple[Operator, ...], calls: int) -> tuple[Operator, ...]:
    return tuple(replace(op, launches=op.launches * calls) for op in ops)


def _padding(name: str, r: Routed, lo: Local) -> tuple[Part, ...]:
    """Rows per expert rounded up for quantised GEMMs: a copy in and out, unless one kernel takes ragged sizes."""
    if r.rows == r.received or _backend(lo) == "fused":
        return ()
    row = lo.act * lo.hidden
    read, write = (r.received, r.rows) if name == "moe.pad" else (r.rows, r.received)
    return (
        Part(
            name=name,
            forward=(Stream(name=name, kind="permute", read=row * read, write=row * write),),
            backward_input=(Stream(name=f"{name}.bwd", kind="permute", read=row * write, write=row * read),),
            tags=MOE,
        ),
    )


def _shared(moe: MoE, lo: Local) -> tuple[Part, ...]:
    """Experts that every token visits: a dense network on the tensor-parallel group, its gate, the final addition."""
    if not moe.moe_shared_expert_intermediate_size:
        return ()
    tags = MOE | {"shared_experts"}
    tensor = lo.act * lo.hidden * lo.shard_tokens
    add = 2 if moe.moe_shared_expert_gate else 1  # gate: a row product and a multiplication
    parts = feed_forward("shared.", moe.moe_shared_expert_intermediate_size, lo, tags, after_norm=False)
    total = Part(
        name="shared.add",
        forward=(
            Stream(name="shared.add", kind="elementwise", read=2 * add * tensor, write=add * tensor, launches=add),
        ),
        backward_input=(
            # gradients of the routed and the shared path meet at the norm's output
            Stream(name="shared.add.bwd", kind="elementwise", read=2 * add * tensor, write=add * tensor, launches=add),
        ),
        weights=(Weight(name="shared.gate", rows=lo.hidden),) if moe.moe_shared_expert_gate else (),
        tags=tags,
    )
    return (*parts, total)
