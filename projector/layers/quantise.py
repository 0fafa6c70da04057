"""Casts to 8- and 4-bit operands: memory-bound kernels beside every quantised GEMM.

A linear needs its input row-wise (forward) and column-wise (weight gradient); one kernel reads the tensor and writes
both. Byte counts: NVIDIA/TransformerEngine transformer_engine/common/recipe, pytorch/quantization.py; scales: one fp32
per 128 elements (blockwise), one byte per 32 (MX) or per 16 (NVFP4) in each of the two directions.
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers.local import LayerView
from projector.operators.module import Module
from projector.operators.types import Stream
from projector.parameter import parameter
from projector.size import real

# cast recipe → (bytes read, bytes written) per element of a bf16 tensor, launches
_COST: dict[str, tuple[float, float, int]] = parameter(
    {
        "delayed": (2.0, 2.0, 1),
        "tensorwise": (4.0, 2.0, 3),  # amax pass, scale, cast-transpose
        "current": (4.0, 2.0, 3),
        # torchao (float8_linear.py): one scale a row for the product's rows, and a cast of its own, transposed, whose
        # scales run down the columns, for the other product: amax pass and cast pass for each
        "rowwise": (4.0, 1.0, 2),
        "blockwise": (2.0, 2.0 + 2 * 4 / 128, 1),
        "mxfp8": (2.0, 2.0 + 2 / 32, 1),
        "mxfp4": (2.0, 1.0 + 2 / 32, 1),
        "nvfp4": (4.0, 1.0 + 2 / 16, 3),  # amax pass, Hadamard, cast
    },
    unit="B/element, launches",
    kind="derived",
    source="NVIDIA/TransformerEngine transformer_engine/common/recipe, "
    "pytorch/quantization.py; torchao float8_linear.py; scales: one fp32 per 128 elements (blockwise), one byte "
    "per 32 (MX) or per 16 (NVFP4) in each of the two directions",
)

_ONE_SCALE = ("delayed", "tensorwise", "current")

# torchao without a compiler (float8_utils.py: tensor_to_amax, to_fp8_saturated; float8_ops.py): magnitudes, their maximum,
# an fp32 copy, times the scale, clamped, to 8 bits; and a transposed copy for the product that wants the other layout
_ELEMENTARY: tuple[float, float, int] = parameter(
    (2.0 + 2.0 + 2.0 + 4.0 + 4.0 + 4.0 + 1.0, 2.0 + 4.0 + 4.0 + 4.0 + 1.0 + 1.0, 12),
    unit="B/element, launches",
    kind="derived",
    source="pytorch/ao torchao/float8/float8_utils.py, float8_ops.py: one kernel for each function",
)

_OPERAND_BYTES = parameter(
    {"mxfp8": 1.0 + 1 / 32, "mxfp4": 0.5 + 1 / 32, "nvfp4": 0.5 + 1 / 16, "blockwise": 1.0 + 4 / 128},
    unit="B/element",
    kind="derived",
    source="a quantised operand with its scales, in the one orientation that is saved: TransformerEngine "
    "pytorch/tensor/{mxfp8,float8_blockwise,nvfp4}_tensor.py",
)


def operand_bytes(view: LayerView) -> float:
    """Returns the bytes of one element of a linear's operand as it is saved."""
    return _OPERAND_BYTES.get(view.cast_recipe, 1.0) if view.quantised else view.act


def cast(name: str, elements: float, view: LayerView) -> tuple[Stream, ...]:
    """Returns the casts of ``elements`` for the linears of ``view``; nothing unless quantised."""
    if not view.quantised:
        return ()
    read, write, launches = _COST.get(view.cast_recipe, _COST["tensorwise"])
    if view.cast_recipe == "tensorwise" and view.execution.fusion.elementary_casts and not view.compiled:
        read, write, launches = _ELEMENTARY
    elif view.cast_recipe in _ONE_SCALE and not view.execution.fusion.cast_transposes:
        write /= 2.0
    stream = Stream(name, "cast", read * elements, write * elements, launches=launches)
    if view.cast_recipe != "rowwise":
        return (stream,)
    return stream, replace(stream, name=f"{name}.columns", kind="transpose")


def rescale(name: str, elements: float, view: LayerView) -> tuple[Stream, ...]:
    """Returns the scaling of a row-wise product after it: torchao runs slow-accumulating products with the tensor-wise
    kernel of cuBLAS and multiplies afterwards (pytorch/ao float8_ops.py, issue 2184; the backward since pull request
    1325)."""
    if view.cast_recipe != "rowwise":
        return ()
    return (Stream(name, "elementwise", view.act * elements, view.act * elements),)


def norm_emits_quantised(view: LayerView) -> bool:
    """Returns whether the fused norm writes 8-bit output: its scale is known beforehand (delayed, MXFP8)."""
    turbo = view.recipe.use_turbo_rms_norm or view.recipe.use_turbo_gemm  # a norm of its own, in 16 bits
    fusion = view.execution.fusion
    known = view.cast_recipe == "delayed" or (view.cast_recipe == "mxfp8" and fusion.norm_casts_mxfp8)
    return view.quantised and fusion.norm and known and not turbo


def activation_emits_quantised(view: LayerView) -> bool:
    """Returns whether the activation writes the operand of the linear after it, in backward of the linear before it: under
    scales known before the tensor (TransformerEngine@v2.8 pytorch/ops/basic/activation.py, ``next_op_input_quantizer``)."""
    return view.quantised and view.execution.fusion.activation_casts and view.cast_recipe in ("delayed", "mxfp8")


def weight_cast(name: str, elements: float, view: LayerView) -> tuple[Stream, ...]:
    """Returns the cast of a weight inside every micro-batch: only where FSDP gathers parameters for each of them.

    Elsewhere quantised weights are kept over the micro-batches of a step and cast once, with the optimizer.
    """
    regathered = view.recipe.data_parallel_sharding == "optim_grads_params" and not view.recipe.fp8_param_gather
    return cast(name, elements, view) if regathered else ()


# What 8-bit core attention adds around its kernels: casts, and narrower context-parallel messages.
#
# NVIDIA/TransformerEngine@d0067d0da pytorch/attention/dot_product_attention: queries, keys and values are joined and cast as
# one tensor (utils.py ``combine_and_quantize``, ``combine_and_dequantize``), the gradient of the output as another. Under
# delayed scaling the kernels write 8 bits, which are widened for the linears around (backends.py ``FusedAttnFunc``); under
# current scaling they write 16. MXFP8 casts each tensor in both directions, behind the exchange between ranks; any other
# recipe in front of it, so that messages carry 8 bits (context_parallel.py). NVFP4 leaves attention to current scaling.
def _eight_bit(view: LayerView) -> bool:
    return bool(view.recipe.fp8_dot_product_attention) and view.quantised


def _delayed(view: LayerView) -> bool:
    return _eight_bit(view) and view.cast_recipe == "delayed"


def sent(view: LayerView) -> float:
    """Returns the bytes of an element of Q, K, V and the output's gradient in a message."""
    return 1.0 if _eight_bit(view) and view.cast_recipe != "mxfp8" else view.act


def received(view: LayerView) -> float:
    """Returns the bytes of an element of the output and the gradients of Q, K, V in a message."""
    return 1.0 if _delayed(view) else view.act


def quantised(part: Module, inputs: int, outputs: int, view: LayerView) -> Module:
    """Adds its casts to ``part``, whose Q, K, V have ``inputs`` elements on this rank and whose output ``outputs``."""
    if not _eight_bit(view):
        return part
    return replace(
        part,
        forward=(
            *_joined("core_attn.join", inputs, view),
            *_narrowed("core_attn.cast", inputs, view),
            *part.forward,
            *_widened("core_attn.out_widen", outputs, view),
        ),
        backward_input=(
            *_narrowed("core_attn.grad_cast", outputs, view),
            *part.backward_input,
            *_widened("core_attn.grad_widen", inputs, view),
        ),
    )


def _joined(name: str, elements: int, view: LayerView) -> tuple[Stream, ...]:
    if view.cast_recipe == "mxfp8":
        return ()
    return (Stream(name, "copy", view.act * elements, view.act * elements),)


def _narrowed(name: str, elements: int, view: LayerView) -> tuple[Stream, ...]:
    """Casts one orientation, all that attention reads; current scaling reads the tensor once more, for its maximum."""
    if view.cast_recipe == "mxfp8":
        return cast(name, elements, view)
    stream = Stream(name, "cast", view.act * elements, real(elements))
    return (stream,) if _delayed(view) else (replace(stream, read=2 * stream.read, launches=3),)


def _widened(name: str, elements: int, view: LayerView) -> tuple[Stream, ...]:
    if not _delayed(view):
        return ()
    return (Stream(name, "cast", real(elements), view.act * elements),)
