"""What every dispatch has."""

from __future__ import annotations

from dataclasses import dataclass

from projector.mechanisms.strategy import Strategy

__all__ = ["Dispatch"]


@dataclass(frozen=True, kw_only=True)
class Dispatch(Strategy):
    """``dispersion``: coefficient of variation of the loads of experts where routing is not forced;
    ``real_data_dispersion``: the same on real text, at the start of a training or of a fine-tuning. ``einsum``:
    products with masks carry tokens to the fixed slots of a capacity factor. ``static_shapes``: buffers of dropless
    experts hold the worst case. ``probs``: router probabilities weight the expert activation (else: applied at
    unpermute)."""

    dispersion: float = 0.0
    real_data_dispersion: float = 0.0
    einsum: bool = False
    static_shapes: bool = False
    probs: bool = True
