"""The libraries that a framework's products, attention and grouped products come from: keys of the kernel models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from projector.mechanisms.strategy import Strategy

__all__ = ["Kernels"]


@dataclass(frozen=True, kw_only=True)
class Kernels(Strategy):
    """Families of kernels. ``grouped``: what a workload that names no ``moe_grouped_gemm`` runs."""

    name: ClassVar[str] = "libraries"
    gemm: str = "cublaslt"
    attention: str = "fa2"
    grouped: str = "multi_stream"
