"""Runs linears in 8 bits through ``torch._scaled_mm``, operands scaled by what they hold now, in place of wider ones.

Every product is of rows with their K innermost: the input by the weight, the gradient by the transposed weight, and the
transposed gradient by the transposed input. Scales are one a tensor, one a row (pytorch/ao torchao/float8/config.py: 5
exponent bits for gradients under the first alone), or one for 1 x 128 elements and 128 x 128 of a weight (DeepSeek-V3,
arXiv:2412.19437 section 3.3.2). What is cast by one scale is transposed in 8 bits, else cast again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from projector.benchmark.device import Device
from projector.benchmark.job import Skip, torch_type
from projector.benchmark.layers_moe import Experts
from projector.benchmark.processes import said
from projector.dataclass import dataclass
from projector.errors import Unsupported
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

Operand = tuple[Tensor, Tensor]  # 8-bit [rows, K], what its elements are to be multiplied by
# elements of one scale; to whose multiples kernels take K (torch aten/src/ATen/native/cuda/Blas.cpp)
_BLOCK, _UNIT = (128, 16)
_LEAST = 1e-12  # magnitude of a tensor of zeros
_SCALINGS = {"delayed": "tensorwise", "tensorwise": "tensorwise", "rowwise": "rowwise", "blockwise": "blockwise"}


@dataclass(frozen=True)
class Way:
    """How a linear runs in 8 bits. ``scaling``: ``tensorwise``, ``rowwise`` or ``blockwise``; types of operands and of
    gradients; ``kept``: weights are cast once a step, not at every use (shards, which are gathered for each use)."""

    scaling: str
    operand: torch.dtype
    gradient: torch.dtype
    kept: bool = True

    def cast(self, x: Tensor, dtype: torch.dtype, rows: int = 1) -> Operand:
        """Returns ``x`` [rows, K] in 8 bits, K padded; ``rows``: how many rows share the scales of blocks."""
        most = torch.finfo(dtype).max
        unit = _BLOCK if self.scaling == "blockwise" else _UNIT
        if x.shape[1] % unit:
            x = nn.functional.pad(x, (0, -x.shape[1] % unit))
        if self.scaling == "blockwise":
            return _by_block(x, dtype, most, rows)
        size = x.abs().amax() if self.scaling == "tensorwise" else x.abs().amax(dim=1, keepdim=True)
        scale = most / size.float().clamp(min=_LEAST)
        return (x.float() * scale).clamp(-most, most).to(dtype).contiguous(), scale.reciprocal()

    def both(self, x: Tensor, dtype: torch.dtype, rows: int = 1) -> tuple[Operand, Operand]:
        """Returns ``x`` [m, n] in 8 bits with n innermost, and transposed with m innermost."""
        narrow = self.cast(x, dtype, rows)
        if self.scaling != "tensorwise" or x.shape[0] % _UNIT or x.shape[1] % _UNIT:
            return narrow, self.cast(x.t().contiguous(), dtype, rows)
        return narrow, (narrow[0].t().contiguous(), narrow[1])

    def product(self, a: Operand, b: Operand, out: torch.dtype, fast: bool) -> Tensor:
        """Returns [m, n] of a [m, K] and b [n, K]. ``fast``: without sums in full precision (Transformer Engine and
        torchao take it for outputs alone; by rows torchao then scales what the kernel of one scale gives)."""
        (left, scale_a), (right, scale_b) = a, b
        scaled_after = self.scaling == "rowwise" and not fast
        one = torch.ones((), device=left.device)
        scales = (one, one) if scaled_after else (scale_a, scale_b.t())
        out_product: Tensor = torch._scaled_mm(
            left, right.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=out, use_fast_accum=fast
        )
        return (out_product * scale_a * scale_b.t()).to(out) if scaled_after else out_product


def _by_block(x: Tensor, dtype: torch.dtype, most: float, rows: int) -> Operand:
    whole = nn.functional.pad(x, (0, 0, 0, -x.shape[0] % rows))
    blocks = whole.reshape(-1, rows, x.shape[1] // _BLOCK, _BLOCK)
    scale = most / blocks.abs().amax(dim=(1, 3)).float().clamp(min=_LEAST)
    scaled = (blocks.float() * scale[:, None, :, None]).clamp(-most, most)
    narrow = scaled.to(dtype).flatten(2).flatten(0, 1).contiguous()
    back = scale.reciprocal()
    return narrow[: x.shape[0]], back if rows > 1 else back.t().contiguous().t()  # kernels want rows innermost there


class _Product(torch.autograd.Function):
    """Multiplies x [tokens, k] by weight [n, k] → [tokens, n]. ``kept``: the cast weight, both ways round, else None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, kept: tuple[Operand, Operand] | None, how: Way) -> Tensor:
        (rows, columns), cast_weight = how.both(x, how.operand), kept or how.both(weight, how.operand, _BLOCK)
        ctx.save_for_backward(*columns, *(() if kept else (weight,)))
        ctx.kept, ctx.how, ctx.types = kept, how, (x.dtype, weight.dtype)
        return how.product(rows, cast_weight[0], x.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        how: Way = ctx.how
        columns, scale, *weight = ctx.saved_tensors
        of_input, of_weight = ctx.types
        rows, columns_of_gradient = how.both(grads[0], how.gradient)
        _, cast_weight = ctx.kept or how.both(weight[0], how.operand, _BLOCK)
        dx = how.product(rows, cast_weight, of_input, fast=False) if ctx.needs_input_grad[0] else None
        dw = how.product(columns_of_gradient, (columns, scale), of_input, fast=False).to(of_weight)
        return dx, dw, None, None


class _Narrow(nn.Module):
    """An 8-bit linear whose weight and bias are those of another linear."""

    def __init__(self, wide: nn.Linear, how: Way) -> None:
        super().__init__()
        self.weight, self.bias, self.how = wide.weight, wide.bias, how
        self.kept: dict[int, tuple[Operand, Operand]] = {}

    def forward(self, x: Tensor) -> Tensor:
        kind = x.device.type
        x = x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x
        out = linear(x.flatten(0, -2), self.weight, self.how, self.kept).reshape(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias.to(out.dtype)


def linear(x: Tensor, weight: Tensor, how: Way, kept: dict[int, tuple[Operand, Operand]], number: int = 0) -> Tensor:
    """Returns ``x`` [tokens, k] by ``weight`` [n, k], whose cast ``kept`` has under ``number`` until :func:`fresh`."""
    if not x.shape[0]:  # an expert that nobody chose
        return nn.functional.linear(x, weight.to(x.dtype))
    if how.kept and number not in kept:
        with torch.no_grad():
            kept[number] = how.both(weight.detach(), how.operand, _BLOCK)
    return _Product.apply(x, weight, kept.get(number), how)  # type: ignore[no-any-return, no-untyped-call]


def written(recipe: Recipe) -> bool:
    """Returns whether the scaling of ``recipe`` is one that is written here."""
    return recipe.precision == "fp8" and (recipe.fp8_recipe or "tensorwise") in _SCALINGS


def way(recipe: Recipe, device: Device, kept: bool = True) -> Way:
    """Returns how the linears of ``recipe`` run. Raises :class:`Unsupported` for a scaling that is not written here."""
    if not written(recipe):
        scaled = f"{recipe.precision} scaled {recipe.fp8_recipe}"
        raise Unsupported(f"live layers in {scaled} through torch: try --layers megatron")
    scaling, operand = _SCALINGS[recipe.fp8_recipe or "tensorwise"], torch_type(device, "fp8")
    wider = torch.float8_e5m2fnuz if operand == torch.float8_e4m3fnuz else torch.float8_e5m2
    return Way(scaling, operand, wider if scaling == "tensorwise" else operand, kept)


def check(recipe: Recipe, device: Device) -> None:
    """Raises :class:`Unsupported` where this device, or this build of torch, lacks a product that a step takes."""
    how = way(recipe, device)
    layer = _Narrow(nn.Linear(2 * _BLOCK, _BLOCK, bias=False, device=device.place, dtype=torch.bfloat16), how)
    x = torch.ones(_BLOCK, 2 * _BLOCK, device=device.place, dtype=torch.bfloat16, requires_grad=True)
    try:
        layer(x).sum().backward()
        device.synchronize()
    except (RuntimeError, ValueError, AttributeError, TypeError, Skip) as error:
        message = said(error)[:120]
        raise Unsupported(f"8-bit products scaled {how.scaling} on {device.title}: torch says {message!r}") from None


def converted(module: nn.Module, workload: Workload, device: Device, kept: bool = True) -> nn.Module:
    """Converts linears and experts of ``module`` to 8 bits where ``workload`` asks for that, and returns it.

    What chooses experts or weighs them stays wide, and what no kernel takes (widths other than multiples of 16).
    """
    if workload.recipe.precision in ("bf16", "fp16", "fp32"):
        return module
    how, moe = way(workload.recipe, device, kept), workload.model.moe
    routers = {1, moe.num_experts} if moe else {1}
    for name, child in [*module.named_modules()]:
        if isinstance(child, Experts):
            child.narrow(how, linear)
        elif (
            isinstance(child, nn.Linear)
            and child.out_features not in routers
            and child.in_features % _UNIT == child.out_features % _UNIT == 0
        ):
            parent, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(parent), attribute, _Narrow(child, how))
        elif any(weight.dim() == 3 for weight in child.parameters(recurse=False)):
            raise Unsupported(f"8-bit experts that are a {type(child).__name__}: try --layers torch or megatron")
    return module


def fresh(module: nn.Module) -> None:
    """Marks weights as changed: they are cast anew, by Transformer Engine too (``is_first_microbatch``)."""
    for part in module.modules():
        if isinstance(part, _Narrow | Experts):
            part.kept.clear()
        elif hasattr(part, "is_first_microbatch"):
            vars(part)["is_first_microbatch"] = True
