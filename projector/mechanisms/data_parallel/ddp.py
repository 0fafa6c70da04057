"""Whole copies on every rank (Li et al. 2020, PyTorch Distributed; Megatron-LM core/distributed)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from projector.mechanisms.data_parallel.base import DataParallel
from projector.workload.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class DDP(DataParallel):
    """Gradients add up in one buffer for a step and are all-reduced in buckets after the last micro-batch."""

    name: ClassVar[str] = "ddp"
    degree: ClassVar[str] = "no_shard"
    megatron_core: ClassVar[bool] = True
    clears_buffers: ClassVar[bool] = True

    def reduces_beside_backward(self, recipe: Recipe) -> bool:
        return bool(recipe.overlap_grad_reduce)

    @property
    def optimizer_grad_bytes(self) -> float:
        return self.grad_bytes
