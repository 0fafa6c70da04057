"""PyTorch's own modules, one kernel after the other (pytorch/torchtitan@b5bcd76c6 torchtitan/models/common)."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.fusion.base import Fusion


@dataclass(frozen=True, kw_only=True)
class TorchEager(Fusion):
    """Three products for queries, keys and values, two for gate and up; autograd adds gradients up; the loss in
    fp32."""

    name: ClassVar[str] = "torch_eager"
    elementary_casts: bool = True
    qkv: bool = False
    gate_up: bool = False
    eager_ring: bool = True
    wgrad_accumulation: str = "none"
    expert_gemm_split: bool = True
    expert_output_weighted: str = "fp32"
    loss: str = "fp32"
