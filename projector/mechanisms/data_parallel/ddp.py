"""Data parallelism with whole copies on every rank (Li et al. 2020, PyTorch Distributed; Megatron-LM core/distributed)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from projector.dataclass import dataclass
from projector.mechanisms.data_parallel.base import DataParallel
from projector.operators.types import Collective
from projector.operators.weights import WeightSet
from projector.size import most, real, where
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class DDP(DataParallel):
    """Gradients add up in one buffer for a step and are all-reduced in buckets after the last micro-batch.

    ``bucket_elements``, ``bucket_elements_a_rank``: a bucket has the larger of the first and the second times the ranks
    (0: no buckets are counted).

    Where reductions run beside the backward, each bucket is reduced, and gathered, by a call of its own, with the
    latency of all its steps; else one call does it all, as for the weights of a pipeline's stage, where only the first
    virtual stage has buckets (NVIDIA/Megatron-LM@d98e8a64dd core/distributed: distributed_data_parallel.py,
    param_and_grad_buffer.py ``partition_buckets``).
    """

    name: ClassVar[str] = "ddp"
    degree: ClassVar[str] = "no_shard"
    megatron_core: ClassVar[bool] = True
    clears_buffers: ClassVar[bool] = True

    bucket_elements: float = 0.0
    bucket_elements_a_rank: float = 0.0

    def configured_by(self, recipe: Recipe) -> Self:
        """Returns this strategy with the buckets that a recipe names. MXFP8 weights travel in bf16 and are quantised
        where they land (``reuse_grad_buf_for_mxfp8_param_ag``)."""
        found = super().configured_by(recipe)
        if recipe.ddp_bucket_size:
            found = replace(found, bucket_elements=real(recipe.ddp_bucket_size), bucket_elements_a_rank=0.0)
        quantised = found.product_gather_bytes > 0 and recipe.precision == "mxfp8"
        return replace(found, product_gather_bytes=found.gather_bytes) if quantised else found

    def buckets(self, workload: Workload, part: WeightSet, stage: int) -> tuple[float, float]:
        """Returns the shares of the last reduced and the first gathered bucket. Buckets are filled in the order of the
        backward, in the first virtual stage alone; every other stage is a single bucket. The embedding comes last.
        Where products are gathered in FP8, all other weights join the last FP8 bucket (``partition_buckets``;
        training/models/dist_utils.py). A last bucket is half full on average."""
        size = self._bucket(workload)
        if not size:
            return super().buckets(workload, part, stage)
        if stage > 0:
            return 1.0, 1.0
        reduced, gathered = [0.0, 0.0], [0.0, 0.0]  # of the last bucket, of all
        for _, group, elements, _ in self._shared(workload, part, ""):
            expert = group == "edp"
            late = part.only("embedding").sum(expert=expert)
            if self.product_gather_bytes:
                late = elements - part.only("linear").sum(expert=expert)
            rest = elements - late if elements - late < size else size / 2
            nbytes = late * self.gather_bytes + rest * self.layer_gather_bytes
            reduced = [reduced[0] + late + rest, reduced[1] + elements]
            gathered = [gathered[0] + nbytes, gathered[1] + self.gathered_bytes(part, expert=expert)]
        return (reduced[0] / reduced[1], gathered[0] / gathered[1]) if reduced[1] else (1.0, 1.0)

    def reduction(self, workload: Workload, part: WeightSet, name: str = "grad") -> tuple[Collective, ...]:
        return self._called(super().reduction(workload, part, name), workload, part)

    def gather(self, workload: Workload, part: WeightSet, name: str = "param") -> tuple[Collective, ...]:
        return self._called(super().gather(workload, part, name), workload, part)

    def _called(self, ops: tuple[Collective, ...], workload: Workload, part: WeightSet) -> tuple[Collective, ...]:
        """Divides ``ops`` into calls, one a bucket: the tensor that fills a bucket closes it and exceeds it by half on
        average."""
        size = self._bucket(workload)
        if not size or not workload.recipe.overlap_grad_reduce or workload.recipe.pp > 1:
            return ops
        found = []
        for op in ops:
            expert = op.group.startswith("edp")
            calls = part.sum(expert=expert) / (size + part.typical(expert=expert) / 2)
            found.append(replace(op, calls=most(1, round(calls))))
        return tuple(found)

    def _bucket(self, workload: Workload) -> float:
        """Returns the elements that close a bucket; 0: buckets are not counted."""
        return most(self.bucket_elements, self.bucket_elements_a_rank * workload.dp * workload.recipe.cp)

    def reduces_beside_backward(self, recipe: Recipe) -> bool:
        return bool(recipe.overlap_grad_reduce)

    @property
    def optimizer_grad_bytes(self) -> float:
        return self.grad_bytes


# PyTorch's DistributedDataParallel (torch nn/parallel/distributed.py, csrc/distributed/c10d/reducer.cpp).
@dataclass(frozen=True, kw_only=True)
class TorchDDP(DDP):
    """Gradients are copied into buckets of their own, and back when they are reduced: all buckets live beside what
    autograd keeps (``gradient_as_bucket_view`` is off by default; a process alone has none). A hook that reduces in 16
    bits leaves both as wide as the weights (distributed/algorithms/ddp_comm_hooks/default_hooks.py). torch's optimizer
    steps the fp32 weights themselves."""

    name: ClassVar[str] = "torch_ddp"
    drops_gradients: ClassVar[bool] = True
    megatron_core: ClassVar[bool] = False
    clears_buffers: ClassVar[bool] = False

    parameter_bytes: float = 4.0
    master_bytes: float = 0.0
    flat_buffers: bool = False
    autocast: bool = True

    def configured_by(self, recipe: Recipe) -> Self:
        found = super().configured_by(recipe)
        return replace(found, grad_bytes=found.parameter_bytes)

    def beside_gradients(self, workload: Workload) -> float:
        beside: float = where(lambda ranks: ranks > 1, workload.dp * workload.recipe.cp, self.grad_bytes, 0.0)
        return beside


# torch distributed/optim/zero_redundancy_optimizer.py, below the same wrapper.
@dataclass(frozen=True, kw_only=True)
class ZeroRedundancy(TorchDDP):
    """States are divided; gradients and their buckets are whole on every rank."""

    name: ClassVar[str] = "zero_redundancy"
    degree: ClassVar[str] = "optim"
    divided: ClassVar[frozenset[str]] = frozenset({"states"})


# ZeRO-2 (Rajbhandari et al. 2020): nobody keeps whole gradients between micro-batches.
@dataclass(frozen=True, kw_only=True)
class Zero2(DDP):
    """States and gradients are divided; gradients are reduce-scattered in every micro-batch."""

    name: ClassVar[str] = "zero2"
    degree: ClassVar[str] = "optim_grads"
    divided: ClassVar[frozenset[str]] = frozenset({"states", "gradients"})


# ZeRO-1 (Rajbhandari et al. 2020): every rank steps its share of the parameters (Megatron-LM core/optimizer/
# distrib_optimizer.py; DeepSpeed runtime/zero/stage_1_and_2.py).
@dataclass(frozen=True, kw_only=True)
class DistributedOptimizer(DDP):
    """States are divided; gradients are reduce-scattered after the last micro-batch, then parameters gathered."""

    name: ClassVar[str] = "distributed_optimizer"
    degree: ClassVar[str] = "optim"
    divided: ClassVar[frozenset[str]] = frozenset({"states"})
