"""PyTorch FSDP2 (torch distributed/fsdp/_fully_shard): sharded parameters one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Self

from projector.dataclass import dataclass
from projector.mechanisms.data_parallel.base import Gathered
from projector.mechanisms.data_parallel.sharded import FullySharded
from projector.operators.types import Collective, Operator, Stream
from projector.operators.weights import WeightSet
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class FSDP2(FullySharded):
    """Gathered weights are split into parameters, gradients packed and cast for the wire. Under a pipeline, stages
    synchronise with their last backward, unit after unit: torch's schedules defer it for a stage whose own module is
    FSDP's (torch distributed/pipelining/stage.py, ``backward_maybe_with_nosync``); weights that its forward frees stay
    after its backward. Where only units inside the stage are FSDP's (no ``wraps_stages``), every backward reduces their
    gradients and frees.

    With ``root_holds_ends`` both ends stay gathered, since the root is not released after its forward (torch
    distributed/fsdp/_fully_shard/_fsdp_state.py, ``_lazy_init``), and are reduced together when the embedding is done;
    else the embedding is released after use (pytorch/torchtitan pull request 1094)."""

    name: ClassVar[str] = "fsdp2"
    taken_along: ClassVar[frozenset[str]] = frozenset({"weights", "gradients"})  # CPUOffloadPolicy
    drops_gradients: ClassVar[bool] = True
    torch_fsdp: ClassVar[bool] = True
    parameter_bytes: float = 4.0
    master_bytes: float = 0.0
    wraps_stages: bool = True

    def configured_by(self, recipe: Recipe) -> Self:
        """Returns this strategy with weights kept from a forward to its backward where a wrapped stage's stay throughout."""
        found = super().configured_by(recipe)
        if recipe.pp == 1 or self.wraps_stages == found._kept(recipe):
            return found
        return replace(found, unsharded_pipeline=False, keeps_gathered=True)

    def _whole(self, recipe: Recipe) -> bool:
        return self._kept(recipe) or (self.wraps_stages and recipe.pp > 1)

    def gathered(self, recipe: Recipe, whole: float, unit: float, embedding: float, head: float) -> Gathered:
        found = super().gathered(recipe, whole, unit, embedding, head)
        if not self.root_holds_ends or self._whole(recipe) or recipe.lora:
            return found
        waiting = 2.0 * head  # its gradient, as backward made it
        return replace(found, backward=found.backward + waiting, projection=found.loss + waiting)

    def _ends(self, embedding: float, head: float) -> float:
        return head + embedding * self.root_holds_ends

    def _beside_layers(self, whole: float, ends: float) -> float:
        return self.gather_bytes * ends * self.root_holds_ends

    def reduces_every_microbatch(self, workload: Workload) -> bool:
        return super().reduces_every_microbatch(workload) and (workload.recipe.pp == 1 or not self.wraps_stages)

    def overlaps_last_reduction(self, recipe: Recipe) -> bool:
        return recipe.pp == 1

    def copied(
        self, unit: str, workload: Workload, elements: float, activation_bytes: float
    ) -> tuple[tuple[Operator, ...], tuple[Operator, ...], tuple[Operator, ...]]:
        """Returns a copy with every gather and every reduction (torch
        distributed/fsdp/_fully_shard/_fsdp_collectives.py, ``split_with_sizes_copy`` and ``chunk_cat``)."""
        recipe = workload.recipe
        if (recipe.data_parallel_shard_size or 1) == 1 or not elements:
            return (), (), ()
        nbytes, wire = self.layer_gather_bytes * elements, self.reduce_bytes * elements
        split, again = (Stream(f"{unit}.{name}", "copy", nbytes, nbytes) for name in ("copy_out", "copy_out.bwd"))
        pack = Stream(f"{unit}.chunk_cat", "copy", activation_bytes * elements, wire)
        gathers = self.gathers_every_microbatch(recipe)
        return (
            (split,) if gathers else (),
            (again,) if gathers and not self.keeps_gathered else (),
            (pack,) if self.reduces_every_microbatch(workload) else (),
        )


# SimpleFSDP (Zhang et al. 2024, "SimpleFSDP: Simpler Fully Sharded Data Parallel with torch.compile").
@dataclass(frozen=True, kw_only=True)
class SimpleFSDP(FSDP2):
    """Every weight is a collective of its own, in its forward, its backward and for its gradient: buckets are a pass
    over the graph that has to be asked for. A weight is read where it lands; gradients are cast for the wire. No module
    is FSDP2's, so a pipeline defers nothing (pytorch/torchtitan@f6ebe8402
    torchtitan/experiments/graph_trainer/simple_fsdp.py, ``ReplicateComputation``)."""

    name: ClassVar[str] = "simple_fsdp"
    wraps_stages: bool = False

    def reduction(self, workload: Workload, part: WeightSet, name: str = "grad") -> tuple[Collective, ...]:
        reduce = super().reduction
        return tuple(op for each in _apart(part) for op in reduce(workload, each, name))

    def gather(self, workload: Workload, part: WeightSet, name: str = "param") -> tuple[Collective, ...]:
        gather = super().gather
        return tuple(op for each in _apart(part) for op in gather(workload, each, name))

    def copied(
        self, unit: str, workload: Workload, elements: float, activation_bytes: float
    ) -> tuple[tuple[Operator, ...], tuple[Operator, ...], tuple[Operator, ...]]:
        *_, cast = super().copied(unit, workload, elements, activation_bytes)
        return (), (), cast


def _apart(part: WeightSet) -> Iterator[WeightSet]:
    return (WeightSet({weight: 1}) for weight, number in part.weights.items() for _ in range(number))
