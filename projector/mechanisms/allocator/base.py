"""What every allocator has."""

from __future__ import annotations

from dataclasses import dataclass

from projector.mechanisms.strategy import Strategy
from projector.parameter import parameter

__all__ = ["Allocator"]

_CONTEXT = parameter(1.0e9, unit="B", kind="assumed", source="estimate: context of CUDA and its libraries")
_RESERVED = parameter(
    1.05,
    kind="fitted",
    source="12 measured configurations (SimuMax B200 results, MooreThreads/SimuMax @4dcaae513ba7): mean 1.05",
    scored=True,
)


@dataclass(frozen=True, kw_only=True)
class Allocator(Strategy):
    """``context_bytes``: of the driver and its libraries, outside the allocator. ``pool_fraction``: share of the device
    that one pool takes at start; 0: the allocator grows as needed. ``planned``: a compiler places every buffer of a
    step ahead of time: no slack, no gradients kept."""

    context_bytes: float = _CONTEXT
    reserved_over_allocated: float = _RESERVED
    ragged_slack: float = 0.0
    pool_fraction: float = 0.0
    planned: bool = False
