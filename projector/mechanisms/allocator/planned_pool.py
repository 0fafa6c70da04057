"""JAX: a pool taken at start, in which XLA places every buffer of a compiled step ahead of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from projector.mechanisms.allocator.base import Allocator
from projector.parameter import parameter

__all__ = ["PlannedPool"]

_POOL = parameter(
    0.75, kind="published", source="JAX documentation, GPU memory allocation: XLA_PYTHON_CLIENT_MEM_FRACTION"
)


@dataclass(frozen=True, kw_only=True)
class PlannedPool(Allocator):
    """``pool_fraction``: XLA_PYTHON_CLIENT_MEM_FRACTION, 0.75 where nobody sets it (JAX documentation, GPU memory
    allocation)."""

    name: ClassVar[str] = "planned_pool"
    pool_fraction: float = _POOL
    planned: bool = True
