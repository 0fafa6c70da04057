"""A linear of all local experts: grouped products, their biases, their weights, and the tensors that they save.

Kernels counted from NVIDIA/Megatron-LM@d98e8a64dd core/transformer/moe/experts.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from projector.errors import Unsupported
from projector.layers import few_bits
from projector.layers.linear import accumulation
from projector.layers.local import LayerView
from projector.layers.lora import expert_adapter, grouped_gemm, one_module
from projector.layers.quantise import cast, operand_bytes, weight_cast
from projector.mechanisms.dispatch.exchange import MOE
from projector.mechanisms.dispatch.routing import Routed
from projector.operators.module import Module
from projector.operators.saved import Saved
from projector.operators.types import Gemm, GroupedGemm, Operator, Stream
from projector.operators.weights import Weight
from projector.size import real


def grouped(name: str, outputs: tuple[int, ...], inputs: int, reads: str, r: Routed, view: LayerView) -> Module:
    """Returns one linear of all local experts on storage ``reads``; ``outputs`` has two widths where gate and up are
    separate products. Raises :class:`Unsupported` for adapters beside masked products."""
    backend = view.execution.kernels.grouped_by(view.recipe)
    extra = expert_adapter(name, sum(outputs), inputs, reads, r, view)
    if backend == "masked":
        if extra.forward:
            raise Unsupported("adapters beside products of all rows with every expert's weights")
        return _with_saves(_masked_products(name, outputs, inputs, r, view), sum(outputs), inputs, reads, r, view)
    if few_bits.integers(view) and backend == "loop":
        raise Unsupported("experts as products of 8-bit integers (lora.quant_type: int8)")
    elements = real(sum(outputs) * inputs * r.experts)
    names = (name,) if len(outputs) == 1 else tuple(f"{name}.{i}" for i in range(len(outputs)))

    def gemm(suffix: str, i: int, n: int, k: int, layout: str) -> GroupedGemm:
        return grouped_gemm(names[i] + suffix, n, k, layout, backend, r, view)

    def products(suffix: str, layout: str) -> Iterator[Operator]:
        for i, n in enumerate(outputs):
            if backend == "loop":
                yield from few_bits.made_again(names[i] + suffix, real(n * inputs * r.experts), inputs, view, r.experts)
            yield gemm(suffix, i, *((inputs, n) if suffix else (n, inputs)), layout)

    weight: list[Operator] = []
    for i, n in enumerate(outputs if view.trainable else ()):
        out_bytes, accumulate, add = accumulation(
            f"{names[i]}.wgrad",
            n * inputs * r.experts,
            view,
            r.experts,
            returned=not view.execution.fusion.expert_wgrad,
        )
        weight += [replace(gemm(".wgrad", i, n, inputs, "NT"), out_bytes=out_bytes, accumulate=accumulate), *add]
    backward: list[Operator] = [*_bias_backward(f"{name}.bias.bwd", r.rows * sum(outputs), r, view)]
    backward += [*cast(f"{name}.grad_cast", r.rows * sum(outputs), view)]
    backward += products(".dgrad", "NN")
    if len(outputs) > 1:
        tensor = view.act * r.held * inputs
        backward.append(Stream(f"{name}.dgrad_add", "elementwise", 2 * tensor, tensor))
    part = Module(
        name,
        forward=(
            *cast(f"{name}.cast", r.rows * inputs, view),
            *weight_cast(f"{name}.weight_cast", elements, view),
            *products("", "TN"),
            *_bias(f"{name}.bias", r.rows * sum(outputs), r, view),
            *extra.forward,
        ),
        backward_input=(*backward, *extra.backward_input),
        backward_weight=(*weight, *extra.backward_weight),
        weights=(*_weights(name, outputs, inputs, r, view), *extra.weights),
        tags=MOE,
    )
    part = _with_saves(part, sum(outputs), inputs, reads, r, view)
    return replace(part, saves=(*part.saves, *extra.saves))


def _with_saves(part: Module, width: int, inputs: int, reads: str, r: Routed, view: LayerView) -> Module:
    """Returns ``part`` with what it saves, as any linear: its input, quantised where the products are, and while a
    weight gradient waits the gradient of its output; frozen experts neither, but the input where a Function saves it
    all the same (tgale96/grouped_gemm grouped_gemm/ops.py, ``GroupedGemm.forward``)."""
    output = view.act * r.held * width
    saves: tuple[Saved, ...] = ()
    if view.trainable or one_module(view):
        last = "weight_gradient" if view.trainable else "backward"
        into = operand_bytes(view) * r.held * inputs
        saves = (Saved(f"{part.name}.in", into, storage=reads, until=last, input=True),)
    if view.trainable:
        saves += (Saved(f"{part.name}.out_grad", output, since="backward", until=last),)
    first = part.name == "experts.fc1"
    tags = {"mlpwi", "expert_fc1"} if first else {"mlpwo"}
    tags |= {"fused_group_mlp"}
    return replace(part, saves=saves, makes=(Saved(f"{part.name}.out", output),), tags=MOE | tags)


def _weights(name: str, outputs: tuple[int, ...], inputs: int, r: Routed, view: LayerView) -> tuple[Weight, ...]:
    split = "columns" if name.endswith("fc2") else "rows"
    matrix = Weight(name, sum(outputs), inputs, count=r.experts, role="linear", expert=True, split=split)
    bias = Weight(f"{name}.bias", sum(outputs), count=r.experts, expert=True)
    return (matrix, bias) if view.model.add_bias_linear else (matrix,)


def _bias(name: str, elements: float, r: Routed, view: LayerView) -> tuple[Stream, ...]:
    """Returns the biases of the experts' second linear, times the probability of each row, outside the products.

    NVIDIA/Megatron-LM core/transformer/moe/experts.py ``TEGroupedMLP._apply_bias``: for each expert bias · probability
    is written in fp32 (4 bytes an element) and added to its rows (2 + 4 read in two types, 4 written), the experts are
    concatenated (4, 4) and cast down (4, 2). The first linear adds its biases in the epilogue of the product.
    """
    if not _weighted_bias(name, view):
        return ()
    return (
        Stream(name, "elementwise", 8.0 * elements, 10.0 * elements, launches=r.experts + 2),
        Stream(f"{name}.add", "strided", 6.0 * elements, 4.0 * elements, launches=r.experts),
    )


def _bias_backward(name: str, elements: float, r: Routed, view: LayerView) -> tuple[Stream, ...]:
    """Returns the gradients of :func:`_bias`: cast up, one type to another (2, 4), and down again for the rows (4, 2),
    products with the probability (4, 4) and the bias (4, 4), each summed (4 + 4), split gradients concatenated (2, 2).
    First linear: a sum over its rows."""
    if not view.model.add_bias_linear:
        return ()
    if not _weighted_bias(name, view):
        return (Stream(name, "reduce", view.act * elements, 0.0, launches=r.experts),)
    return (
        Stream(f"{name}.up", "strided", 2.0 * elements, 4.0 * elements),
        Stream(name, "elementwise", 22.0 * elements, 12.0 * elements, launches=6 * r.experts + 1),
    )


def _weighted_bias(name: str, view: LayerView) -> bool:
    return view.model.add_bias_linear and not view.execution.fusion.expert_bias and name.startswith("experts.fc2")


def _masked_products(name: str, outputs: tuple[int, ...], inputs: int, r: Routed, view: LayerView) -> Module:
    """Returns the same linear as products of all held rows with each expert's weights: ``experts`` times the work."""

    def gemm(suffix: str, i: int, m: int, n: int, k: int, layout: str) -> Gemm:
        label = f"{name}.{i}{suffix}"
        return Gemm(label, m, n, k, batch=r.experts, dtype=view.linear_dtype, scaling=view.scaling, layout=layout)

    rows = range(len(outputs))
    return Module(
        name,
        forward=tuple(gemm("", i, r.held, outputs[i], inputs, "TN") for i in rows),
        backward_input=tuple(gemm(".dgrad", i, r.held, inputs, outputs[i], "NN") for i in rows),
        backward_weight=tuple(gemm(".wgrad", i, outputs[i], inputs, r.held, "NT") for i in rows),
        weights=_weights(name, outputs, inputs, r, view),
        tags=MOE,
    )
