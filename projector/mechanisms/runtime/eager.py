"""Kernels launched one by one from Python, whole modules or partial graphs of them replayed where the recipe says
so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from projector.mechanisms.runtime.base import Runtime

__all__ = ["Eager"]


@dataclass(frozen=True, kw_only=True)
class Eager(Runtime):
    """PyTorch's dispatcher and autograd."""

    name: ClassVar[str] = "eager"
