"""What every allocator answers: what a peak of live bytes takes of the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from projector.dataclass import dataclass
from projector.mechanisms.strategy import Strategy
from projector.parameter import parameter
from projector.workload.recipe import Recipe

_CONTEXT = parameter(1.0e9, unit="B", kind="assumed", source="estimate: context of CUDA and its libraries")


@dataclass(frozen=True, kw_only=True)
class Allocator(Strategy, ABC):
    """``context_bytes``: of the driver and its libraries, outside the allocator; ``peer_bytes``: there for each other rank
    with which experts are exchanged. ``states_first``: optimizer states exist before any activation, else the first step
    makes them in blocks that activations left, and later activations need blocks of their own. In all methods ``tp``: size
    of the tensor parallel group; ``ragged``: buffers of experts change size with every micro-batch; ``outside``: bytes of
    the device outside the allocator."""

    planned: ClassVar[bool] = False
    """A compiler places every buffer of a step ahead of time: no slack, no gradients kept."""
    context_bytes: float = _CONTEXT
    peer_bytes: float = 0.0
    states_first: bool = False

    def usable(self, memory: float, left: float) -> float:
        """What a run can allocate on a device of ``memory`` bytes, of which the driver leaves ``left``."""
        return left

    @abstractmethod
    def reserved(self, allocated: float, tp: int, ragged: bool) -> float:
        """What the allocator holds at a peak of ``allocated`` bytes."""

    @abstractmethod
    def needed(self, allocated: float, tp: int, ragged: bool, outside: float) -> tuple[float, float]:
        """What such a peak needs of the usable bytes at the least, and as a rule."""

    def on_device(self, reserved: float, memory: float, outside: float) -> float:
        """What the device shows as used (nvidia-smi, rocm-smi)."""
        return reserved + outside

    def run_by(self, recipe: Recipe) -> Self:
        """With the share of the device that a recipe gives it."""
        return self
