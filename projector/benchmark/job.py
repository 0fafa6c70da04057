"""Describes one kernel to be timed: the operator that really runs, the library that runs it, and how to set it up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from projector.benchmark.device import Device
from projector.dataclass import dataclass
from projector.kernels.protocol import ComputeOp
from projector.operators.types import Gemm, GroupedGemm

FP8 = ("fp8", "mxfp8")
_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
_BLOCK = 1 << 20  # random numbers that are drawn; more are copies of them, since drawing is slower than any kernel

Product = TypeVar("Product", Gemm, GroupedGemm)


class Skip(Exception):
    """Raised for a kernel that cannot run here; the text says why."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A kernel set up: ``call`` runs it once; ``note``: what is special about how it runs."""

    call: Callable[[], object]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to time. ``op``: with the sizes that run; ``family``: library; ``nbytes``: memory that it needs.

    ``build`` allocates, and raises :class:`Skip` where the device or this build of torch has no such kernel.
    """

    kind: str
    op: ComputeOp
    family: str
    nbytes: float
    build: Callable[[], Ready]

    @property
    def work(self) -> float:
        """Returns the amount that orders jobs of one kind: FLOP, or bytes of a stream."""
        return self.op.flops or float(getattr(self.op, "bytes", 0.0))


def as_run(op: Product, device: Device, **changes: Any) -> Product:
    """Returns one launch of a product as it runs here, with these ``changes``: 8 bits are scaled by tensor where nothing
    is said. Raises :class:`Skip` for a layout or type that torch cannot run."""
    if op.layout not in ("TN", "NN", "NT"):
        raise Skip(f"layout {op.layout}")
    torch_type(device, op.dtype)
    scaling = op.scaling or "tensorwise" if op.dtype == "fp8" else op.scaling
    return replace(op, name="", launches=1, scaling=scaling, **changes)


def in_two_kernels(product: Callable[[], Any], out: Any, accumulate: bool) -> Ready:
    """Returns a ``product`` that a second kernel adds to ``out``, or casts into it."""
    write = out.add_ if accumulate else out.copy_
    return Ready(lambda: write(product()), f"product and {'addition' if accumulate else 'cast'} in two kernels")


def unheard(_: object) -> None:
    """Does nothing, as a callback of progress that nobody watches."""


def torch_type(device: Device, dtype: str) -> Any:
    """Returns the torch type of an operand type. Raises :class:`Skip` for one that torch has no products of."""
    if dtype in FP8:
        # CDNA3 has the variant without negative zero (AMD CDNA3 ISA reference, section on FP8)
        return device.torch.float8_e4m3fnuz if device.arch == "gfx942" else device.torch.float8_e4m3fn
    if dtype not in _TYPES:
        raise Skip(f"no products of {dtype} operands through torch")
    return getattr(device.torch, _TYPES[dtype])


def filled(device: Device, shape: tuple[int, ...], dtype: Any) -> Any:
    """Returns a contiguous tensor of standard normal values (power, hence clock, depends on the bits that toggle)."""
    torch = device.torch
    count = math.prod(shape)
    block = torch.randn(min(count, _BLOCK), device=device.place).to(dtype)
    if count <= _BLOCK:
        return block.reshape(shape)
    tensor = torch.empty(count, dtype=dtype, device=device.place)
    for start in range(0, count, _BLOCK):
        part = tensor[start : start + _BLOCK]
        part.copy_(block[: part.numel()])
    return tensor.reshape(shape)
