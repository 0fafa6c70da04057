"""What low-rank adapters keep beside the frozen model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from projector.mechanisms.strategy import Strategy

__all__ = ["Adapters"]


@dataclass(frozen=True, kw_only=True)
class Adapters(Strategy):
    """``frozen_weights_quantised``: weights below adapters exist in the narrow compute type only. ``dropout``: of the
    input of an adapter; above 0 its mask is kept."""

    name: ClassVar[str] = "low_rank"
    frozen_weights_quantised: bool = False
    dropout: float = 0.0
