"""Fully sharded strategies (ZeRO-3): weights are gathered unit by unit, before each use."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from projector.dataclass import dataclass
from projector.mechanisms.data_parallel.base import DataParallel, Gathered
from projector.operators.types import Operator, Stream
from projector.parameter import parameter
from projector.size import least
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class FullySharded(DataParallel):
    """Weights, gradients and states are divided. ``unsharded_pipeline``: under a pipeline weights stay gathered,
    gradients whole until the last micro-batch, as ``fsdp_reshard_after_forward`` of a recipe states (pytorch/torchtitan
    distributed/fsdp.py; torch distributed/pipelining/stage.py, ``backward_maybe_with_nosync``)."""

    degree: ClassVar[str] = "optim_grads_params"
    divided: ClassVar[frozenset[str]] = frozenset({"states", "gradients", "weights"})

    def _kept(self, recipe: Recipe) -> bool:
        return self.unsharded_pipeline and recipe.pp > 1

    _whole = _kept  # whether all weights are gathered at one time, and their gradients whole

    def gathers_every_microbatch(self, recipe: Recipe) -> bool:
        return not self._kept(recipe)

    def reduces_every_microbatch(self, workload: Workload) -> bool:
        return not self.keeps_whole_gradients(workload)

    def keeps_whole_gradients(self, workload: Workload) -> bool:
        return self.defers_sync and workload.recipe.pp == 1 and workload.num_microbatches > 1

    def gathered(self, recipe: Recipe, whole: float, unit: float, embedding: float, head: float) -> Gathered:
        """Returns the current unit and the prefetched one; in backward also the unit's gradient and, when it is reduced
        in a wider type, that copy. The head stays gathered from its forward to its backward (torchtitan
        models/llama3/infra/parallelize.py)."""
        packed = recipe.quant_type is not None
        trained = recipe.lora is None  # gradients of adapters weigh next to nothing
        if self._whole(recipe):
            everything = (self.layer_gather_bytes + self.reduce_bytes * trained) * whole
            return Gathered(everything, everything, everything, everything)
        ends = self._ends(embedding, head)
        kept, gradient = self.gather_bytes * ends, self._unit_gradient * trained
        layers = self._beside_layers(0.0 if packed else whole, ends)
        if self.keeps_gathered:  # the last unit's forward, and the first backward
            every = self.layer_gather_bytes * whole
            return Gathered(every, every + gradient * unit, every, every + gradient * ends)
        return Gathered(
            forward=2 * self.layer_gather_bytes * unit + layers,
            backward=(2 * (self.layer_gather_bytes if packed else self.gather_bytes) + gradient) * unit + layers,
            loss=self.layer_gather_bytes * unit + kept,
            projection=self.layer_gather_bytes * unit + kept + gradient * ends,
        )

    @property
    def _unit_gradient(self) -> float:
        """Returns the bytes of a gradient of the current unit, as backward makes it and, if wider, as it is reduced."""
        return 2.0 + (self.reduce_bytes if self.reduce_bytes > 2.0 else 0.0)

    def _ends(self, embedding: float, head: float) -> float:
        """Returns the elements that stay gathered while the loss is differentiated."""
        return head

    def _beside_layers(self, whole: float, ends: float) -> float:
        """Returns the bytes that stay while layers run."""
        return 0.0


# PyTorch FSDP1 (Zhao et al. 2023; torch distributed/fsdp/fully_sharded_data_parallel.py): one flat parameter a
# unit.
@dataclass(frozen=True, kw_only=True)
class FSDP1(FullySharded):
    """The root unit, both ends of the model, stays gathered throughout. Units work on views of their buffer."""

    name: ClassVar[str] = "fsdp1"
    taken_along: ClassVar[frozenset[str]] = frozenset({"weights", "gradients"})  # CPUOffload
    drops_gradients: ClassVar[bool] = True
    torch_fsdp: ClassVar[bool] = True
    parameter_bytes: float = 4.0
    master_bytes: float = 0.0

    def _ends(self, embedding: float, head: float) -> float:
        return head + embedding

    def _beside_layers(self, whole: float, ends: float) -> float:
        return self.gather_bytes * ends


# Megatron-FSDP (Megatron-LM core/distributed/fsdp): units as views of one buffer.
@dataclass(frozen=True, kw_only=True)
class MegatronFSDP(FullySharded):
    """16-bit weights beside the optimizer's fp32 copy, as Megatron-Core's optimizers keep them."""

    name: ClassVar[str] = "megatron_fsdp"
    megatron_core: ClassVar[bool] = True


# Weights sharded over a mesh axis that XLA gathers and scatters along (AI-Hypercomputer/maxtext
# MaxText/configs/base.yml, ``ici_fsdp_parallelism``, ``dcn_fsdp_parallelism``).
@dataclass(frozen=True, kw_only=True)
class XlaFSDP(FullySharded):
    """fp32 weights, gathered and reduced in 16 bits, inside an iteration of the loop over layers unless XLA's flags
    free both."""

    name: ClassVar[str] = "xla_fsdp"
    parameter_bytes: float = 4.0
    master_bytes: float = 0.0
    reduce_bytes: float = 2.0
    prefetches: bool = False

    def configured_by(self, recipe: Recipe) -> Self:
        said: dict[str, Any] = {"gather_combine_bytes": float(recipe.xla_gpu_all_gather_combine_threshold_bytes or 0)}
        if recipe.xla_gpu_enable_pipelined_all_gather and recipe.xla_gpu_enable_while_loop_double_buffering:
            said["prefetches"] = True
        return super().configured_by(recipe).evolve(said)

    def reduces_beside_backward(self, recipe: Recipe) -> bool:
        return self.prefetches


# DeepSpeed ZeRO-3 (deepspeed/runtime/zero/stage3.py).
_BUCKET = parameter(
    5e8, unit="elements", kind="published", source="deepspeed/runtime/zero/config.py, reduce_bucket_size"
)


@dataclass(frozen=True, kw_only=True)
class Zero3(FullySharded):
    """DeepSpeed ZeRO-3 (deepspeed/runtime/zero/stage3.py): gradients leave in buckets of 16 bits, beside the backward. They
    are copied into their bucket, laid out rank by rank, and divided by the number of ranks: three passes over all of them
    (``__add_grad_to_ipg_bucket``; deepspeed/runtime/comm/coalesced_collectives.py, ``reduce_scatter_coalesced``)."""

    name: ClassVar[str] = "zero3"
    bucketed_to_host: ClassVar[bool] = True
    taken_along: ClassVar[frozenset[str]] = frozenset({"gradients"})  # grad_partitions_flat_buffer is on self.device

    @property
    def _unit_gradient(self) -> float:
        return 2.0

    def gathered(self, recipe: Recipe, whole: float, unit: float, embedding: float, head: float) -> Gathered:
        """Returns the gathered units, the bucket, which stays, and in the backward the copy that is laid out."""
        found, bucket = super().gathered(recipe, whole, unit, embedding, head), 2.0 * least(_BUCKET, whole)
        both = bucket * (1.0 if recipe.lora else 2.0)  # gradients of adapters weigh next to nothing
        return Gathered(found.forward + bucket, found.backward + both, found.loss + bucket, found.projection + both)

    def copied(
        self, unit: str, workload: Workload, elements: float, activation_bytes: float
    ) -> tuple[tuple[Operator, ...], tuple[Operator, ...], tuple[Operator, ...]]:
        """Returns the three passes over a unit's gradients before they are reduced."""
        if not elements or (workload.recipe.data_parallel_shard_size or 1) == 1:
            return (), (), ()
        nbytes = 3 * activation_bytes * elements
        return (), (), (Stream(f"{unit}.bucket", "copy", nbytes, nbytes, launches=3),)
