"""XLA's fusions over MaxText's layers (AI-Hypercomputer/maxtext MaxText/layers)."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.fusion.base import Fusion


@dataclass(frozen=True, kw_only=True)
class XLA(Fusion):
    """Element-wise neighbours in one kernel; products as the model writes them."""

    name: ClassVar[str] = "xla"
    qkv: bool = False
    gate_up: bool = False
    elementwise: bool = True
    wgrad_accumulation: str = "none"
    expert_gemm_split: bool = True
    loss: str = "fp32"
