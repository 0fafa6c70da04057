"""Weights sharded over a mesh axis that XLA gathers and scatters along (AI-Hypercomputer/maxtext
MaxText/configs/base.yml, ``ici_fsdp_parallelism``, ``dcn_fsdp_parallelism``)."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from projector.dataclass import dataclass
from projector.mechanisms.data_parallel.sharded import FullySharded
from projector.workload.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class XlaFSDP(FullySharded):
    """fp32 weights, gathered and reduced in 16 bits, inside an iteration of the loop over layers unless XLA's flags let
    both leave it."""

    name: ClassVar[str] = "xla_fsdp"
    parameter_bytes: float = 4.0
    master_bytes: float = 0.0
    reduce_bytes: float = 2.0
    prefetches: bool = False

    def run_by(self, recipe: Recipe) -> Self:
        said: dict[str, Any] = {"gather_combine_bytes": float(recipe.xla_gpu_all_gather_combine_threshold_bytes or 0)}
        if recipe.xla_gpu_enable_pipelined_all_gather and recipe.xla_gpu_enable_while_loop_double_buffering:
            said["prefetches"] = True
        return super().run_by(recipe).but(said)

    def reduces_beside_backward(self, recipe: Recipe) -> bool:
        return self.prefetches
