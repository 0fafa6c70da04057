"""A compiled program whose shapes are known before it runs (AI-Hypercomputer/maxtext MaxText/layers/moe.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from projector.mechanisms.dispatch.base import Dispatch

__all__ = ["Compiled"]


@dataclass(frozen=True, kw_only=True)
class Compiled(Dispatch):
    """Masks and products under a capacity factor, buffers of the worst case without one."""

    name: ClassVar[str] = "compiled"
    einsum: bool = True
    static_shapes: bool = True
