"""HybridEP (deepseek-ai/DeepEP, branch hybrid-ep; Megatron-LM core/transformer/moe/fused_a2a.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from projector.mechanisms.dispatch.fused import Fused

__all__ = ["HybridEP"]


@dataclass(frozen=True, kw_only=True)
class HybridEP(Fused):
    """Rows land sorted by expert, in a buffer for the worst case."""

    name: ClassVar[str] = "hybridep"
    word: ClassVar[str] = "hybridep"
    permutes: ClassVar[bool] = True
