"""The dense feed-forward network: gated (SwiGLU) or plain (GELU, squared ReLU), and its activation kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from projector.layers.linear import Linear, linear
from projector.layers.local import LayerView
from projector.layers.norms import norm, residual, sandwich
from projector.operators.module import Module, function
from projector.operators.saved import Saved, Transient
from projector.operators.types import HostWork, Stream
from projector.parameter import parameter
from projector.size import real

MLP = frozenset({"mlp"})
_SCRIPTED, _SCRIPTED_BACK, _SCRIPTED_ALIVE = parameter(
    ((13.0, 10.0, 10), (26.0, 19.0, 19), 5.0),
    unit="tensors read, written, launches; tensors",
    kind="derived",
    source="operators of the scripted functions bias_gelu and bias_gelu_back, one by one, and what is alive between them "
    "(NVIDIA/Megatron-LM@f77277433 megatron/model/fused_bias_gelu.py)",
)
_CUT, _CUT_COMPILED = parameter(
    (((4.0, 2.0, 6), (8.0, 5.0, 8)), ((2.0, 1.0, 2), (4.0, 1.0, 2))),
    unit="gates, launches",
    kind="derived",
    source="huggingface/transformers@00aa0f5d models/gemma3n/modeling_gemma3n.py, _gaussian_topk: mean, deviation, "
    "difference, ReLU of a gate and their gradients; compiled a reduction and one pass",
)


_SITU, _SITU_WEIGHTED = parameter(
    (((52.0, 46.0, 12), (94.0, 60.0, 16), 24.0), ((58.0, 52.0, 14), (114.0, 74.0, 21), 24.0)),
    unit="B/element read, written, launches; B/element",
    kind="derived",
    source="operators in fp32 of situ_pre_mul and of its gradient, one by one, and what autograd saves between them "
    "(AMD-AGI/Primus@a42a5280 primus/backends/megatron/core/transformer/kimi_k3/situ_activation.py); product with a "
    "probability in fp32 and its cast, and their gradients (NVIDIA/Megatron-LM@d98e8a64dd "
    "megatron/core/transformer/moe/experts.py, use_te_activation_func)",
)
_GELU, _GELU_AUTOCAST = parameter(
    (((20.0, 16.0, 8), (34.0, 22.0, 11), 6.0), ((40.0, 36.0, 10), (70.0, 48.0, 15), 14.0)),
    unit="B/element read, written, launches; B/element",
    kind="derived",
    source="operators of NewGELUActivation (huggingface/transformers activations.py), one by one, and what autograd saves; "
    "pow makes fp32 under torch.autocast (pytorch aten/src/ATen/autocast_mode.h)",
)


def mlp(view: LayerView) -> tuple[Module, ...]:
    """Returns the feed-forward half of a dense layer, from its norm to the residual addition."""
    return (
        *host_work("mlp", 1.0, view, MLP),
        norm("pre_mlp_norm", view, tags=MLP | {"mlp_norm"}),
        *_with_transients(_with_sparse_gate(feed_forward("", view.model.ffn_hidden_size, view, MLP), view), view),
        *sandwich("post_mlp_norm", view, MLP, "fc2.out"),
        residual("mlp_residual", view),
    )


def host_work(scope: str, share: float, view: LayerView, tags: frozenset[str]) -> tuple[Module, ...]:
    """Returns ``share`` of the host time of a layer's Python modules and autograd functions around its kernels, in
    forward and in backward, as one module that graphs of ``scope`` replay; nothing for a runtime without such time."""
    micros = share * view.execution.runtime.modules_us
    if not micros:
        return ()
    forward, backward = HostWork(f"{scope}.modules", micros), HostWork(f"{scope}.modules.bwd", micros)
    return (Module(f"{scope}.modules", forward=(forward,), backward_input=(backward,), tags=tags | {scope}),)


def _with_sparse_gate(parts: tuple[Module, ...], view: LayerView) -> tuple[Module, ...]:
    """Subtracts a multiple of its own mean and deviation from the gate and cuts it at zero (Gemma 3n)."""
    if not view.model.sparse_activation:
        return parts
    fc1, act, fc2 = parts
    (output,) = act.makes
    costs = _CUT_COMPILED if view.compiled else _CUT
    cut = function("gate_cut", output.bytes, *costs, saves=(Saved("gate_cut.out", output.bytes),), tags=MLP)
    return fc1, cut, act, fc2


def _with_transients(parts: tuple[Module, ...], view: LayerView) -> tuple[Module, ...]:
    """Adds the costliest moments of the backward: FC2's data gradient; the activation's gradients beside the incoming
    one, FC2's input freed; with sequence parallelism FC1's gathered input and data gradient."""
    fc1, *_, act, fc2 = parts
    (output,) = act.makes
    halves = (2 if view.model.gated_linear_unit else 1) * output.bytes
    gathered = view.gathered_bytes if view.sp else 0.0
    last = Transient("fc2_backward", gathered + output.bytes)
    between = _SCRIPTED_ALIVE * output.bytes if _interpreted(view) else 0.0
    middle = Transient("activation_backward", output.bytes + halves + between, freed=output.bytes)
    first = Transient("fc1_backward", 2 * gathered + view.hidden_bytes, freed=output.bytes) if view.sp else None
    return (
        replace(fc1, backward_transient=first),
        *parts[1:-2],
        replace(act, backward_transient=middle),
        replace(fc2, backward_transient=last),
    )


def feed_forward(
    prefix: str, ffn_hidden_size: int, view: LayerView, tags: frozenset[str], *, after_norm: bool = True
) -> tuple[Module, ...]:
    """Returns FC1, the activation and FC2, whose width ``ffn_hidden_size`` is split over the tensor-parallel group."""
    width = -(-ffn_hidden_size // view.tp)
    gated, bias = view.model.gated_linear_unit, view.model.add_bias_linear
    outputs = (width,) if not gated else (2 * width,) if view.execution.fusion.gate_up else (width, width)
    fc1 = Linear(
        f"{prefix}fc1",
        outputs,
        view.hidden,
        view.tokens,
        "column",
        bias=bias,
        after_norm=after_norm,
        beside_activation="before",
        target="linear_fc1",
        reads="pre_mlp_norm.out",
    )
    fc2 = Linear(
        f"{prefix}fc2",
        (view.hidden,),
        width,
        view.tokens,
        "row",
        bias=bias,
        beside_activation="after",
        target="linear_fc2",
        reads=f"{prefix}act.out",
    )
    return (
        linear(fc1, view, tags | {"mlpwi"}),
        activation(f"{prefix}act", width, view.tokens, view, tags, reads=f"{prefix}fc1.out"),
        linear(fc2, view, tags | {"mlpwo"}),
    )


def activation(
    name: str, width: int, rows: int, view: LayerView, tags: frozenset[str], *, reads: str, weighted: bool = False
) -> Module:
    """Returns the activation between the two linears on ``rows`` × ``width`` of storage ``reads``; ``weighted``: times
    the router's probability.

    Gated and fused: reads gate and up, writes one tensor (6 bytes an element in bf16); backward reads the gradient and
    both saved halves and writes both gradients (10 bytes).
    """
    tensor, gated = view.act * width * rows, view.model.gated_linear_unit
    if view.model.activation_situ_beta is not None and not view.compiled:
        return _stepwise(name, width * rows, view, tags, reads, _SITU_WEIGHTED if weighted else _SITU, weighted)
    if view.model.composed_gelu and not (view.compiled or view.recipe.bias_activation_fusion):
        return _stepwise(name, width * rows, view, tags, reads, _GELU_AUTOCAST if view.cast_weight_bytes else _GELU)
    # a GELU without bias is one kernel in eager mode, too
    one_kernel = not (gated or weighted or view.model.add_bias_linear)
    joined = bool(view.recipe.bias_activation_fusion) and (view.execution.fusion.gated_activation or not gated)
    fused = joined or view.compiled or one_kernel
    inputs = 2 if gated else 1
    # eager: every elementary function is its own kernel and its own round trip
    passes, launches = (1.0, 1) if fused else (2.0, (3 if gated else 2) + 2 * weighted)
    forward = (passes * inputs, passes, launches)
    backward = (passes * (1 + inputs), passes * inputs, (launches if fused else launches + 2) + weighted)
    if _interpreted(view) and not weighted:
        forward, backward = _SCRIPTED, _SCRIPTED_BACK
    probability = 4.0 * rows if weighted else 0.0
    return Module(
        name,
        forward=(
            Stream(name, "activation", forward[0] * tensor + probability, forward[1] * tensor, launches=forward[2]),
            *_store_cast(f"{name}.store", inputs * width * rows, view),
        ),
        backward_input=(
            *_restore_cast(f"{name}.restore", inputs * width * rows, view),
            Stream(
                f"{name}.bwd",
                "activation",
                backward[0] * tensor + probability,
                backward[1] * tensor + probability,
                launches=backward[2],
            ),
        ),
        saves=_saves(name, tensor, reads, fused, weighted, view),
        makes=(Saved(f"{name}.out", tensor),),
        tags=tags,
    )


def _stepwise(
    name: str, elements: int, view: LayerView, tags: frozenset[str], reads: str, costs: Any, weighted: bool = False
) -> Module:
    """Returns an activation of ``elements``, function by function; ``costs``: forward, backward, bytes that stay."""
    tensor = view.act * elements
    steps = (Saved(f"{name}.steps", costs[2] * elements), *(Saved(f"{name}.unweighted", tensor),) * weighted)
    saves = (*_saves(name, tensor, reads, True, weighted, view), *steps)
    return function(name, elements, *costs[:2], saves=saves, makes=(Saved(f"{name}.out", tensor),), tags=tags)


def _interpreted(view: LayerView) -> bool:
    """Returns whether the function that adds a bias and applies a GELU is scripted and nothing joins its kernels."""
    recipe, model = view.recipe, view.model
    scripted = bool(recipe.bias_activation_fusion) and model.add_bias_linear and not model.gated_linear_unit
    return scripted and not (recipe.jit_fusion or view.compiled)


def _store_cast(name: str, elements: int, view: LayerView) -> tuple[Stream, ...]:
    """Returns the cast of the input that ``--activation-func-fp8-input-store`` keeps (Megatron-LM
    core/fusions/fused_bias_swiglu); TransformerEngine reads it once more, for its maximum (v2.8
    pytorch/ops/basic/activation.py)."""
    if not (view.recipe.activation_func_fp8_input_store and view.model.gated_linear_unit):
        return ()
    passes, launches = (2, 3) if view.execution.fusion.activation_casts else (1, 1)
    read = passes * view.act * elements
    return (Stream(name, "cast", read, real(elements), launches=launches),)


def _restore_cast(name: str, elements: int, view: LayerView) -> tuple[Stream, ...]:
    return tuple(Stream(name, "cast", real(elements), view.act * elements) for _ in _store_cast(name, elements, view))


def _saves(name: str, tensor: float, reads: str, fused: bool, weighted: bool, view: LayerView) -> tuple[Saved, ...]:
    """Returns the input, in 8 bits under ``--activation-func-fp8-input-store`` (Megatron-LM
    core/fusions/fused_bias_swiglu.py); unfused also the activated gate, which the product saves, and that product where
    a probability multiplies it."""
    gated = view.model.gated_linear_unit
    stored = 0.5 if view.recipe.activation_func_fp8_input_store and gated else 1.0
    saves = [Saved(f"{name}.in", tensor * (2 if gated else 1) * stored, storage=reads, input=True)]
    apart = () if fused else (*("gate",) * gated, *("unweighted",) * weighted)
    return (*saves, *(Saved(f"{name}.{kind}", tensor) for kind in apart))
