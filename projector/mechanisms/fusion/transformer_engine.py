"""Transformer Engine's modules (NVIDIA/TransformerEngine@d0067d0da transformer_engine/pytorch/module)."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.fusion.base import Fusion


@dataclass(frozen=True, kw_only=True)
class TransformerEngine(Fusion):
    """Norms beside products, weight gradients added up by the product that makes them."""

    name: ClassVar[str] = "transformer_engine"
