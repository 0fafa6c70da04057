"""How recomputation is carried out, beyond what the recipe states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from projector.mechanisms.strategy import Strategy

__all__ = ["Recompute"]


@dataclass(frozen=True, kw_only=True)
class Recompute(Strategy):
    """``pruned``: what only a layer's output needs is not computed again in its backward (a compiler proves it dead).
    ``fewest``: where nothing is stated and something must be recomputed, as few layers as fit."""

    name: ClassVar[str] = "checkpoints"
    pruned: bool = False
    fewest: bool = False
