"""PyTorch FSDP2 (torch distributed/fsdp/_fully_shard): sharded parameters one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from projector.mechanisms.data_parallel.base import Gathered
from projector.mechanisms.data_parallel.sharded import FullySharded
from projector.operators.types import Operator, Stream
from projector.workload.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class FSDP2(FullySharded):
    """Gathered weights are split into parameters, gradients packed and cast for the wire. Under a pipeline stages
    synchronise with their last backward, unit after unit.

    With ``root_holds_ends`` both ends stay gathered, since the root is not released after its forward (torch
    distributed/fsdp/_fully_shard/_fsdp_state.py, ``_lazy_init``), and are reduced together when the embedding is done; else
    the embedding is released after use (pytorch/torchtitan pull request 1094)."""

    name: ClassVar[str] = "fsdp2"
    parameter_bytes: float = 4.0
    master_bytes: float = 0.0

    def gathered(self, recipe: Recipe, whole: float, unit: float, embedding: float, head: float) -> Gathered:
        found = super().gathered(recipe, whole, unit, embedding, head)
        if not self.root_holds_ends or self._kept(recipe):
            return found
        waiting = 2.0 * head  # its gradient, as backward made it
        return replace(found, backward=found.backward + waiting, projection=found.loss + waiting)

    def _ends(self, embedding: float, head: float) -> float:
        return head + embedding * self.root_holds_ends

    def _beside_layers(self, whole: float, ends: float) -> float:
        return self.gather_bytes * ends * self.root_holds_ends

    def reduces_every_microbatch(self, recipe: Recipe) -> bool:
        return recipe.pp == 1

    def overlaps_last_reduction(self, recipe: Recipe) -> bool:
        return False

    def copied(
        self, unit: str, recipe: Recipe, elements: float, activation_bytes: float
    ) -> tuple[tuple[Operator, ...], tuple[Operator, ...], tuple[Operator, ...]]:
        """torch distributed/fsdp/_fully_shard/_fsdp_collectives.py, ``split_with_sizes_copy`` and ``chunk_cat``."""
        if (recipe.data_parallel_shard_size or 1) == 1 or not elements:
            return (), (), ()
        nbytes, wire = self.layer_gather_bytes * elements, self.reduce_bytes * elements
        split, again = (
            Stream(name=f"{unit}.{name}", kind="copy", read=nbytes, write=nbytes)
            for name in ("copy_out", "copy_out.bwd")
        )
        pack = Stream(name=f"{unit}.chunk_cat", kind="copy", read=activation_bytes * elements, write=wire)
        return (split,), (again,), (pack,)
