"""Finds products and attention with the shapes that the profiler recorded, where it did (``record_shapes``)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_high

from harness.trace.events import Inputs, Kernels, Ops
from harness.trace.owners import BACKWARD_NAME, Owner
from projector.dataclass import dataclass
from projector.operators.types import Attention, Gemm

_PRODUCT = re.compile(r"^aten::(mm|addmm|bmm|baddbmm|_scaled_mm|addmm_)$")
_ADDED = re.compile(r"^aten::(addmm|baddbmm|addmm_)$")
_FLASH = re.compile(r"flash_attention|flash_attn|scaled_dot_product", re.IGNORECASE)
#: What :func:`shaped` reads the shapes of.
SHAPED = re.compile(f"{_PRODUCT.pattern}|{_FLASH.pattern}", re.IGNORECASE)
_TYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2": "fp8",
}


@dataclass(frozen=True, slots=True)
class Shaped:
    """One shape: ``calls`` of it, the ``seconds`` of the kernels that one call ran (their median), and their
    ``provider``. ``laid``: the trace says how the operands lie in memory (``layout`` of a product is else a guess);
    ``model``: seconds by the kernel model, where a configuration was given."""

    op: Gemm | Attention
    provider: str
    calls: int
    seconds: float
    laid: bool
    model: float | None = None


Key = tuple[Gemm | Attention, str, bool]


def shaped(ops: Ops, kernels: Kernels, owner: Sequence[Owner]) -> tuple[Shaped, ...]:
    """Returns every shape, the longest in all first."""
    kinds = kernels.kinds()
    spent: dict[int, float] = {}
    providers: dict[int, Counter[str]] = {}
    for at, owner_of_kernel in enumerate(owner):
        named = kinds[int(kernels.name[at])]
        if owner_of_kernel.op >= 0 and named.kind in ("GEMM", "attention"):
            seconds = float(kernels.end[at] - kernels.start[at])
            spent[owner_of_kernel.op] = spent.get(owner_of_kernel.op, 0.0) + seconds
            providers.setdefault(owner_of_kernel.op, Counter())[named.provider] += 1
    rows: dict[Key, list[float]] = {}
    for place, op, laid in _known(ops, spent):
        rows.setdefault((op, providers[place].most_common(1)[0][0], laid), []).append(spent[place])
    shapes = [
        Shaped(op, provider, len(times), median_high(times), laid) for (op, provider, laid), times in rows.items()
    ]
    return tuple(sorted(shapes, key=lambda row: -row.calls * row.seconds))


def _known(ops: Ops, places: Mapping[int, float]) -> Iterator[tuple[int, Gemm | Attention, bool]]:
    for place in places:
        inputs = ops.inputs.get(place)
        if inputs is not None:
            name = ops.names[int(ops.name[place])]
            op = _product(name, inputs) if _PRODUCT.search(name) else _attention(name, inputs)
            if op is not None:
                yield place, op, bool(inputs.strides)


def _product(name: str, inputs: Inputs) -> Gemm | None:
    """Returns the product of ``mm(A [m, k], B [k, n])``; ``addmm`` and ``baddbmm`` add their first input to it."""
    at = [place for place, shape in enumerate(inputs.sizes) if len(shape) in (2, 3)]
    at = at[1:] if _ADDED.search(name) and len(at) > 2 else at
    if len(at) < 2:
        return None
    first, second = inputs.sizes[at[0]], inputs.sizes[at[1]]
    if len(first) != len(second) or first[-1] != second[-2]:
        return None
    *batch, m, k = first
    dtype = _TYPES.get(inputs.types[at[0]], "") if len(inputs.types) > at[0] else ""
    layout = _layout(inputs.strides, at) or "TN"
    return Gemm(
        name="traced", m=m, n=second[-1], k=k, batch=batch[0] if batch else 1, dtype=dtype or "bf16", layout=layout
    )


def _layout(strides: tuple[tuple[int, ...], ...], at: Sequence[int]) -> str:
    """Returns the BLAS letters of two row-major operands, the second first: TN where the second is stored transposed (a
    linear's weight), NT where the first is (its weight gradient)."""
    if len(strides) <= at[1]:
        return ""
    return "".join("T" if len(strides[place]) > 1 and strides[place][-2] == 1 else "N" for place in (at[1], at[0]))


def _attention(name: str, inputs: Inputs) -> Attention | None:
    """Reads SDPA of torch: [batch, heads, sequence, head dim]; FlashAttention itself: [batch, sequence, heads, head
    dim]."""
    if not _FLASH.search(name):
        return None
    at = [place for place, shape in enumerate(inputs.sizes) if len(shape) == 4]
    at = at[1:] if BACKWARD_NAME.search(name) and len(at) > 3 else at  # the gradient of the output comes first
    if len(at) < 3:
        return None
    (batch, a, b, width), (_, c, d, _), (_, _, _, value) = (inputs.sizes[place] for place in at[:3])
    heads, seq_q, kv_heads, seq_k = (a, b, c, d) if name.startswith("aten::") else (b, a, d, c)
    if heads % max(1, kv_heads):
        return None
    dtype = _TYPES.get(inputs.types[at[0]], "bf16") if len(inputs.types) > at[0] else "bf16"
    return Attention(
        name="traced",
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim_qk=width,
        head_dim_v=value,
        dtype=dtype,
        backward=bool(BACKWARD_NAME.search(name)),
    )
