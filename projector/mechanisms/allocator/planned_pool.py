"""JAX: a pool taken at start, in which XLA places every buffer of a compiled step ahead of time."""

from __future__ import annotations

from typing import ClassVar, Self

from projector.dataclass import dataclass
from projector.mechanisms.allocator.base import Allocator
from projector.parameter import parameter
from projector.size import least, most
from projector.workload.recipe import Recipe

_POOL = parameter(
    0.75, kind="published", source="JAX documentation, GPU memory allocation: XLA_PYTHON_CLIENT_MEM_FRACTION"
)


@dataclass(frozen=True, kw_only=True)
class PlannedPool(Allocator):
    """``pool_fraction``: share of the device that the pool takes, XLA_PYTHON_CLIENT_MEM_FRACTION. Context and communicators
    live outside it."""

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

    def run_by(self, recipe: Recipe) -> Self:
        share = recipe.device_memory_fraction
        return self.but({"pool_fraction": share}) if share else self
