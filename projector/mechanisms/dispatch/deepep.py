"""DeepEP (deepseek-ai/DeepEP@dd758ca csrc/deep_ep.cpp): rows land per token, then their copies are sorted by expert."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.dispatch.fused import Fused


@dataclass(frozen=True, kw_only=True)
class DeepEP(Fused):
    """Permutation is the framework's, fused or not."""

    name: ClassVar[str] = "deepep"
    word: ClassVar[str] = "deepep"
