"""DeepEP (deepseek-ai/DeepEP@dd758ca csrc/deep_ep.cpp)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from projector.mechanisms.dispatch.fused import Fused

__all__ = ["DeepEP"]


@dataclass(frozen=True, kw_only=True)
class DeepEP(Fused):
    """Rows land per token; their copies are sorted by expert after that."""

    name: ClassVar[str] = "deepep"
    word: ClassVar[str] = "deepep"
    permutes: ClassVar[bool] = False
