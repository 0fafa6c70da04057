"""PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp): freed blocks stay with the process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from projector.mechanisms.allocator.base import Allocator

__all__ = ["Caching"]


@dataclass(frozen=True, kw_only=True)
class Caching(Allocator):
    """``reserved_over_allocated``: what it holds at the peak over what is live. ``ragged_slack``: more of it where
    buffers of an all-to-all change size with every micro-batch."""

    name: ClassVar[str] = "caching"
