"""What fully sharded strategies have in common (ZeRO-3): weights are gathered unit by unit, before each use."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.data_parallel.base import DataParallel, Gathered
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class FullySharded(DataParallel):
    """``unsharded_pipeline``: under a pipeline weights stay gathered, gradients whole until the last micro-batch: what
    ``fsdp_reshard_after_forward`` says where a recipe states it (pytorch/torchtitan distributed/fsdp.py; torch
    distributed/pipelining/stage.py, ``backward_maybe_with_nosync``)."""

    degree: ClassVar[str] = "optim_grads_params"
    divided: ClassVar[frozenset[str]] = frozenset({"states", "gradients", "weights"})

    def _kept(self, recipe: Recipe) -> bool:
        return self.unsharded_pipeline and recipe.pp > 1

    def gathers_every_microbatch(self, recipe: Recipe) -> bool:
        return not self._kept(recipe)

    def reduces_every_microbatch(self, workload: Workload) -> bool:
        return not self.keeps_whole_gradients(workload)

    def keeps_whole_gradients(self, workload: Workload) -> bool:
        return self.defers_sync and workload.recipe.pp == 1 and workload.num_microbatches > 1

    def gathered(self, recipe: Recipe, whole: float, unit: float, embedding: float, head: float) -> Gathered:
        """The current unit and the prefetched one; in backward also the unit's gradient and, when it is reduced in a
        wider type, that copy. The head stays gathered from its forward to its backward (torchtitan models/llama3/infra/
        parallelize.py)."""
        if self._kept(recipe):
            everything = (self.layer_gather_bytes + self.reduce_bytes) * whole
            return Gathered(everything, everything, everything, everything)
        ends = self._ends(embedding, head)
        kept, gradient, layers = self.gather_bytes * ends, self._unit_gradient, self._beside_layers(whole, ends)
        if self.keeps_gathered:  # the last unit's forward, and the first backward
            every = self.layer_gather_bytes * whole
            return Gathered(every, every + gradient * unit, every, every + gradient * ends)
        return Gathered(
            forward=2 * self.layer_gather_bytes * unit + layers,
            backward=(2 * self.gather_bytes + gradient) * unit + layers,
            loss=self.layer_gather_bytes * unit + kept,
            projection=self.layer_gather_bytes * unit + kept + gradient * ends,
        )

    @property
    def _unit_gradient(self) -> float:
        """Bytes of a gradient of the unit at work: as backward makes it, and as it is reduced where that is wider."""
        return 2.0 + (self.reduce_bytes if self.reduce_bytes > 2.0 else 0.0)

    def _ends(self, embedding: float, head: float) -> float:
        """Elements that stay gathered while the loss is differentiated."""
        return head

    def _beside_layers(self, whole: float, ends: float) -> float:
        """Bytes that stay while layers run."""
        return 0.0
