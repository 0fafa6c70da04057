"""Allocators: how much of a device's memory a peak of live bytes takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from projector.dataclass import dataclass
from projector.mechanisms.strategy import Strategy
from projector.parameter import parameter
from projector.size import least, most
from projector.workload.recipe import Recipe

_CONTEXT = parameter(1.0e9, unit="B", kind="assumed", source="estimate: context of CUDA and its libraries")


@dataclass(frozen=True, kw_only=True)
class Allocator(Strategy, ABC):
    """How memory is allocated. ``context_bytes``: of the driver and its libraries, outside the allocator;
    ``peer_bytes``: there for each other rank with which experts are exchanged. ``states_first``: optimizer states exist
    before any activation, else the first step makes them in blocks that activations left, and later activations need
    blocks of their own. In all methods ``tp``: size of the tensor parallel group; ``ragged``: buffers of experts change
    size with every micro-batch; ``outside``: bytes of the device outside the allocator."""

    planned: ClassVar[bool] = False
    """Whether a compiler places every buffer of a step ahead of time: no slack, no gradients kept."""
    context_bytes: float = _CONTEXT
    peer_bytes: float = 0.0
    states_first: bool = False

    def usable(self, memory: float, left: float) -> float:
        """Returns the bytes that a run can allocate on a device of ``memory`` bytes, of which the driver leaves ``left``."""
        return left

    @abstractmethod
    def reserved(self, allocated: float, tp: int, ragged: bool) -> float:
        """Returns the bytes that the allocator holds at a peak of ``allocated`` bytes."""

    @abstractmethod
    def needed(self, allocated: float, tp: int, ragged: bool, outside: float) -> tuple[float, float]:
        """Returns how many of the usable bytes such a peak needs at least, and as a rule."""

    def on_device(self, reserved: float, memory: float, outside: float) -> float:
        """Returns the bytes that the device shows as used (nvidia-smi, rocm-smi)."""
        return reserved + outside

    def configured_by(self, recipe: Recipe) -> Self:
        """Returns this allocator with the share of the device that ``recipe`` gives it."""
        return self


# JAX: a pool taken at start, in which XLA places every buffer of a compiled step ahead of time.
_POOL = parameter(
    0.75, kind="published", source="JAX documentation, GPU memory allocation: XLA_PYTHON_CLIENT_MEM_FRACTION"
)


@dataclass(frozen=True, kw_only=True)
class PlannedPool(Allocator):
    """A pool in which a compiler places every buffer. ``pool_fraction``: share of the device that the pool takes,
    XLA_PYTHON_CLIENT_MEM_FRACTION. Context and communicators live outside it."""

    name: ClassVar[str] = "planned_pool"
    planned: ClassVar[bool] = True
    pool_fraction: float = _POOL

    def usable(self, memory: float, left: float) -> float:
        return least(self.pool_fraction * memory, left)

    def reserved(self, allocated: float, tp: int, ragged: bool) -> float:
        return allocated

    def needed(self, allocated: float, tp: int, ragged: bool, outside: float) -> tuple[float, float]:
        return allocated, allocated

    def on_device(self, reserved: float, memory: float, outside: float) -> float:
        return most(self.pool_fraction * memory, reserved) + outside

    def configured_by(self, recipe: Recipe) -> Self:
        share = recipe.device_memory_fraction
        return self.evolve({"pool_fraction": share}) if share else self


# PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp): freed blocks stay with the process.
# Its held over its live bytes, and how far that ratio lies from its mean without tensor parallelism and with it.
_RESERVED, _TP1, _TP = parameter(
    (1.05, 0.068 - 0.05, 0.033 - 0.05),
    kind="fitted",
    source="12 measured configurations (SimuMax B200 results, MooreThreads/SimuMax @4dcaae513ba7): mean 1.05, without "
    "tensor parallelism 1.068, with it 1.033",
    scored=True,
)
# Held over live bytes where tensors of tensor parallel collectives come back late.
_RECORDED = parameter(
    1.27,
    kind="fitted",
    source="the 23 rows of BigScience's tables that state their precision (Megatron-DeepSpeed, PyTorch 1.1x, tp 2 to 8)",
    low=1.12,
    high=1.32,
    scored=True,
)
# The allocator gives cached blocks back before it fails, except for this share of the allocated bytes.
_UNAVOIDABLE = parameter(
    0.02,
    kind="assumed",
    source="the lowest measured slack is 1.028, and part of that is cache",
    low=0.0,
    high=0.028,
    scored=True,
)


@dataclass(frozen=True, kw_only=True)
class Caching(Allocator):
    """PyTorch's caching allocator. ``reserved_over_allocated``: held over live bytes at the peak. ``ragged_slack``: share of
    the live bytes lost between segments where buffers change size: split segments cannot be given back, so all of it is
    needed. ``records_streams``: tensors of a collective come back when the device has run it, not when the host has queued
    what follows (``Tensor.record_stream``: torch before pull request 148590, 2025-03, unless
    TORCH_NCCL_AVOID_RECORD_STREAMS=1; pytorch/torchtitan pull request 737 on the cost with tensor parallelism), and a host
    that runs ahead takes new blocks meanwhile. Decomposed exchanges (``tp_comm_overlap``) have buffers of their own."""

    name: ClassVar[str] = "caching"
    reserved_over_allocated: float = _RESERVED
    ragged_slack: float = 0.0
    records_streams: bool = False

    def configured_by(self, recipe: Recipe) -> Self:
        return self.evolve({"records_streams": False}) if recipe.tp_comm_overlap else self

    def reserved(self, allocated: float, tp: int, ragged: bool) -> float:
        slack = most(0.0, self.reserved_over_allocated + (_TP1 if tp == 1 else _TP) - 1.0)
        if self.records_streams and tp > 1:
            slack = most(slack, _RECORDED - 1.0)
        return allocated * (1.0 + slack + self.ragged_slack * ragged)

    def needed(self, allocated: float, tp: int, ragged: bool, outside: float) -> tuple[float, float]:
        usual = self.reserved(allocated, tp, ragged)
        sure = least(usual, allocated * (1.0 + _UNAVOIDABLE + self.ragged_slack * ragged))
        return sure + outside, usual + outside
