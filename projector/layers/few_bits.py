"""Frozen weights in 4 or 8 bits below adapters: what they weigh, and the kernels around their products.

4 bits (QLoRA, arXiv:2305.14314; bitsandbytes-foundation/bitsandbytes@95f9af30 autograd/_functions.py ``MatMul4Bit``,
backends/cuda/ops.py ``gemm_4bit``): each product, forward and for the input's gradient, first makes the weight again in the
type of the computation, in memory. With double quantisation two kernels make the scales before that. Fused products, which
serve few rows, are not modelled.

8 bits (LLM.int8(), arXiv:2208.07339; the same file, ``MatMul8bitLt``, backends/{cuda,default}/ops.py): forward the input is
cast to fp16, searched for columns with outliers, and quantised row by row; the product of integers is scaled, cast, and the
product of the few columns added. Backward the weight is made again in two kernels. The host waits for the search, which is
not counted.

Weights of linear layers alone are quantised: embedding, norms, output layer, routers and adapters are not
(huggingface/transformers quantizers/base.py, ``get_modules_to_not_convert``; meta-pytorch/torchtune@bd2a0fc7
models/llama3_1/_component_builders.py). Embedding and output layer are counted in 16 bits, although peft's
``prepare_model_for_kbit_training`` makes fp32 of what is 16 bits wide.
"""

from __future__ import annotations

from projector.frameworks.types import Resolved
from projector.layers.local import LayerView
from projector.mechanisms import Execution
from projector.operators.types import Operator, Stream
from projector.operators.weights import WeightSet
from projector.parameter import parameter
from projector.size import most
from projector.workload.lora import LoRA
from projector.workload.recipe import Recipe

_BLOCK, _NESTED = parameter(
    (64, 256),
    unit="elements",
    kind="published",
    source="QLoRA (arXiv:2305.14314), section 3: blocks of 64 weights share an fp32 scale; double quantisation keeps it in "
    "8 bits, and 256 such scales share one of fp32: 8/64 + 32/(64 · 256) = 0.127 bits of a weight",
)
#: Kernels before a 4-bit weight, and those that make the scales of double quantisation.
_DEQUANTISE, _SCALES = parameter(
    (1, 2), unit="launches", kind="published",
    source="bitsandbytes@95f9af30 functional.py, dequantize_4bit: dequantize_blockwise of scales, an addition, the kernel",
)  # fmt: skip
# (read, written) bytes of an element and launches: to fp16; magnitudes, their comparison, two looks for any, the places;
# quantised; zeroed columns
_SEARCHED = parameter(
    (2.0 + 2.0 + 1.0 + 1.0 + 2.0, 2.0 + 1.0 + 1.0, 8),
    unit="B/element, launches",
    kind="derived",
    source="bitsandbytes@95f9af30 backends/cuda/ops.py, int8_vectorwise_quant: one kernel for each function",
)
# 32-bit sums scaled to fp16, the product of columns with outliers added
_SCALED = parameter(
    (4.0 + 2.0, 2.0 + 2.0, 6),
    unit="B/element, launches",
    kind="derived",
    source="bitsandbytes@95f9af30 backends/default/ops.py, int8_mixed_scaled_mm: gathers, int8_mm_dequant, addmm",
)
# two nibbles apart, as 64-bit places (4 + 4 B), looked up, scales spread, multiplied, joined: and what lives at the end
_ELEMENTARY = parameter(
    (16.0, 15.0, 15, 14.0),
    unit="B/element, launches, B/element",
    kind="derived",
    source="pytorch/ao@36027d82 torchao/quantization/quantize_/workflows/nf4/nf4_tensor.py, get_original_weight: one "
    "kernel for each function",
)
INT8_SUM = 4.0
"""Bytes of an element that a product of 8-bit integers writes."""


def scale_bytes(lora: LoRA, columns: float) -> float:
    """Returns the bytes of scales for each weight of a matrix of so many columns: one fp32 a row, or those of blocks."""
    if lora.quant_type == "int8":
        return 4.0 / columns
    return 1.0 / _BLOCK + 4.0 / (_BLOCK * _NESTED) if lora.double_quant else 4.0 / _BLOCK


def quantised(resolved: Resolved, weights: WeightSet) -> WeightSet:
    """Returns those of the ``weights`` of a rank that are kept in few bits: linear ones, and those of experts that run in a
    loop, whose modules are linear layers; the others' are parameters, which keep their 16 bits
    (axolotl-ai-cloud/axolotl@067b021c docs/expert_quantization.qmd)."""
    recipe = resolved.workload.recipe
    if recipe.lora is None or recipe.lora.quant_type is None:
        return WeightSet({})
    looped = resolved.execution.kernels.grouped_by(recipe) == "loop"
    linear = weights.only("linear").weights.items()
    return WeightSet({weight: number for weight, number in linear if looped or not weight.expert})


def saved(resolved: Resolved, weights: WeightSet, weight_bytes: float) -> float:
    """Returns the bytes that a rank saves of ``weights``: ranks that share weights share their codes; each holds all scales
    (bitsandbytes functional.py, ``QuantState``, an attribute of the parameter)."""
    lora, few = resolved.workload.recipe.lora, quantised(resolved, weights)
    if lora is None or not few.weights:
        return 0.0
    own = resolved.execution.data_parallel.resident("weights", resolved.workload, few.dense, few.expert)
    scales = sum(w.elements * number * scale_bytes(lora, w.columns) for w, number in few.weights.items())
    return own * (weight_bytes - lora.code_bytes) - scales


def scratch(resolved: Resolved, weights: WeightSet, weight_bytes: float) -> float:
    """Returns the bytes of one weight of a rank as it is made again, the largest."""
    few = quantised(resolved, weights).weights
    again = _ELEMENTARY[-1] if _elementary(resolved.execution, resolved.workload.recipe) else weight_bytes
    return most(0.0, *[again * weight.rows * weight.columns for weight in few])


def _elementary(execution: Execution, recipe: Recipe) -> bool:
    return execution.adapters.elementary_codes and not execution.fusion.elementwise and recipe.quant_type != "int8"


def made_again(name: str, elements: float, columns: int, view: LayerView, matrices: int = 1) -> tuple[Stream, ...]:
    """Returns the kernels that make a weight of so many ``elements`` again before a product that reads it in 16 bits or
    more."""
    lora = view.recipe.lora
    if lora is None or not (code := lora.code_bytes):
        return ()
    if lora.quant_type == "int8":  # cast, then scaled in place
        return (Stream(f"{name}.cast", "cast", (code + view.act) * elements, 2 * view.act * elements, 2 * matrices),)
    if _elementary(view.execution, view.recipe):
        read, write, launches, _ = _ELEMENTARY
        return (Stream(f"{name}.dequantise", "cast", read * elements, write * elements, launches * matrices),)
    scales = elements / _BLOCK if lora.double_quant else 0.0
    read = code * elements + scale_bytes(lora, columns) * elements + 2 * 4.0 * scales
    launches = _DEQUANTISE + _SCALES * lora.double_quant
    return (Stream(f"{name}.dequantise", "cast", read, view.act * elements + 2 * 4.0 * scales, launches * matrices),)


def integers(view: LayerView) -> bool:
    """Returns whether forward products are those of 8-bit integers."""
    return view.recipe.quant_type == "int8"


def around(
    name: str, rows: int, inputs: int, width: int, view: LayerView
) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """Returns what stands before and behind the forward product of integers of [rows, inputs] to [rows, width]."""
    if not integers(view):
        return (), ()
    wider = view.dtype != "fp16"  # a cast to fp16 before, one to the own type behind
    read, write, launches = _SEARCHED
    before = ((read + view.act * wider) * rows * inputs, (write + 2.0 * wider) * rows * inputs, launches + wider)
    read, write, launches = _SCALED
    behind = ((read + 2.0 * wider) * rows * width, (write + view.act * wider) * rows * width, launches + wider)
    return (Stream(f"{name}.quantise", "cast", *before),), (Stream(f"{name}.scale", "cast", *behind),)
