"""Describes one kernel to be timed: the operator that really runs, the library that runs it, and how to set it up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from projector.benchmark.device import Device
from projector.dataclass import dataclass
from projector.kernels.protocol import ComputeOp

FP8 = ("fp8", "mxfp8")
_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
_BLOCK = 1 << 20  # random numbers that are drawn; more are copies of them, since drawing is slower than any kernel


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
