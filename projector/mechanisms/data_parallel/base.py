"""The base of all strategies of data parallelism: what is resident, what travels, when, and beside what.

Bytes follow Megatron-LM's distributed optimizer (NVIDIA/Megatron-LM@d98e8a64dd megatron/core/distributed,
core/optimizer) and PyTorch FSDP2 (pytorch/torchtitan@b5bcd76c6 torchtitan/distributed).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

from projector.dataclass import dataclass
from projector.mechanisms.strategy import Strategy
from projector.operators.rank import WIDTH
from projector.operators.types import Collective, Operator
from projector.operators.weights import WeightSet
from projector.parameter import parameter
from projector.size import least, most
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

_OVERLAP = parameter(
    0.9, kind="assumed", source="estimate: gathers and reductions wait a little for each other and for their copies"
)
_BUCKET_SHARE = parameter(
    0.1,
    kind="assumed",
    source="estimate: share of a reduction that is its last bucket (of a gather: its first), where no buckets are counted",
)
_HOST_BYTES = parameter(
    80.0,
    unit="B",
    kind="published",
    source="CPU Adam of Megatron-Core beside its copies (NVIDIA-NeMo/Megatron-Bridge pull request 3062)",
)
_HOST_RATE = parameter(
    0.68e9,
    unit="parameters/s",
    kind="published",
    source="CPU Adam of Megatron-Core on DGX H100: 1.9e9 parameters in 2.9 s (Megatron-Bridge pull request 3062)",
)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Bytes of gathered weights (and their gradients) on top of a rank's own share: during layers (``forward``,
    ``backward``), while the ``loss`` is differentiated, and while the output layer (``projection``) is."""

    forward: float = 0.0
    backward: float = 0.0
    loss: float = 0.0
    projection: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DataParallel(Strategy):
    """Every rank has its own micro-batches; gradients meet once in each step.

    ``parameter_bytes``, ``master_bytes``: of a weight as the model reads it, and of the optimizer's own copy (0: it has
    none). ``grad_bytes``: of an element of the accumulation buffer; ``kept_gradient_bytes``: of a second, narrow one
    beside it. ``reduce_bytes``, ``gather_bytes``: of an element on the wire; ``product_gather_bytes``: of a gathered
    weight whose products are quantised, where that differs. ``overlap``: share of the shorter of compute and weight
    traffic of a unit that really runs beside the other; ``opaque_overlap``: factor on that beside layers whose experts
    run in custom calls. ``prefetches``: a unit's traffic may run beside its neighbours' work; else only gathers do,
    beside their own unit's, ``gather_combine_bytes`` in one (projector/step/loop_gathers.py). ``across_nodes``: ranks
    of one shard group sit in different nodes (a mesh axis over the network). ``flat_buffers``: weights are copied into
    one flat buffer on the device when the model is wrapped. ``keeps_gathered``: a unit that is gathered for its forward
    stays so until its backward (torch ``ShardingStrategy.SHARD_GRAD_OP``, ``reshard_after_forward=False``).
    ``defers_sync``: gradients of all micro-batches add up whole on every rank and are reduced beside the last backward
    (torch ``no_sync``, ``set_requires_gradient_sync``). ``always_divides_states``: without any sharding the optimizer's
    states are shared out all the same. ``autocast``: weights of fp32 that are not gathered are cast for each product
    (``torch.autocast``). ``root_holds_ends``: under FSDP2 only layers are units of their own, embedding
    and output layer belong to the root. ``host_optimizer_bytes``, ``host_optimizer_rate``: for an optimizer on the CPU,
    host-memory traffic of a parameter, and parameters/s of one process.
    """

    degree: ClassVar[str]
    """The ``data_parallel_sharding`` of a recipe that runs this strategy."""
    divided: ClassVar[frozenset[str]] = frozenset()
    """Those of ``weights``, ``gradients``, ``states`` that the ranks of a shard group share out."""
    megatron_core: ClassVar[bool] = False
    """Whether linears are Transformer Engine's and products of torch run in the output layer alone, as in Megatron-Core."""
    clears_buffers: ClassVar[bool] = False
    """Whether whole gradient buffers are cleared, scaled and, if asked, searched for NaN in each step."""
    bucketed_to_host: ClassVar[bool] = False
    """Whether gradients go to an optimizer on the host in 16-bit buckets beside the backward, and weights return so."""

    taken_along: ClassVar[frozenset[str]] = frozenset()
    """Those of ``weights``, ``gradients`` that live in host memory where the optimizer does."""
    drops_gradients: ClassVar[bool] = False
    """Whether autograd makes gradients anew in each step, instead of adding to a buffer that stays."""
    torch_fsdp: ClassVar[bool] = False
    """Whether it is torch's: reduced gradients are allocated on a stream of their own, whose free blocks nothing else
    gets (torch distributed/fsdp: ``foreach_reduce``, ``_reduce_grad``)."""

    parameter_bytes: float = 2.0
    master_bytes: float = 4.0
    grad_bytes: float = 4.0
    kept_gradient_bytes: float = 0.0
    reduce_bytes: float = 4.0
    gather_bytes: float = 2.0
    product_gather_bytes: float = 0.0
    overlap: float = _OVERLAP
    opaque_overlap: float = 1.0
    prefetches: bool = True
    gather_combine_bytes: float = 0.0
    across_nodes: bool = False
    flat_buffers: bool = True
    unsharded_pipeline: bool = False
    keeps_gathered: bool = False
    defers_sync: bool = False
    always_divides_states: bool = False
    autocast: bool = False
    root_holds_ends: bool = False
    host_optimizer_bytes: float = _HOST_BYTES
    host_optimizer_rate: float = _HOST_RATE

    def configured_by(self, recipe: Recipe) -> Self:
        """Returns this strategy with the bytes and the resharding that a recipe states."""
        said: dict[str, Any] = {}
        if recipe.precision == "fp32":
            said["gather_bytes"] = 4.0
        if recipe.grad_reduce_in_bf16:
            said |= {"reduce_bytes": 2.0, "grad_bytes": 2.0}
        if recipe.main_params_dtype == "bf16" and not self.master_bytes:
            said |= {"parameter_bytes": 2.0, "grad_bytes": 2.0}
        if recipe.fp8_param_gather and recipe.precision in ("fp8", "mxfp8"):
            said["product_gather_bytes"] = 1.0
        if recipe.lora and recipe.quant_type:
            said["product_gather_bytes"] = recipe.lora.code_bytes
        if recipe.fsdp_reshard_after_forward is not None:
            said["unsharded_pipeline"] = said["keeps_gathered"] = not recipe.fsdp_reshard_after_forward
        if recipe.defer_fsdp_grad_sync is not None:
            said["defers_sync"] = recipe.defer_fsdp_grad_sync
        return self.evolve(said)

    def shards(self, workload: Workload) -> tuple[int, int]:
        """Returns the ranks that share one optimizer state: dense (of dp · cp) and expert (of expert data parallelism)."""
        if not self.divided:
            return 1, 1
        dense, expert = self.copies(workload)
        return most(1, workload.dp * workload.recipe.cp // dense), workload.edp // expert

    def copies(self, workload: Workload) -> tuple[int, int]:
        """Returns the number of groups that each hold one whole state among them, dense and expert: replicas of HSDP,
        or instances of the partial distributed optimizer (Megatron-LM core/parallel_state.py,
        ``num_distributed_optimizer_instances``)."""
        recipe, ranks = workload.recipe, workload.dp * workload.recipe.cp
        dense = most(
            recipe.num_distributed_optimizer_instances or 1, ranks // (recipe.data_parallel_shard_size or ranks)
        )
        return dense, dense if workload.edp % dense == 0 else 1

    def resident(self, what: str, workload: Workload, dense: float, expert: float) -> float:
        """Returns how many elements of ``what`` (a word of ``divided``) one rank keeps of ``dense`` and ``expert`` ones
        that the model has on its coordinates."""
        if what not in self.divided:
            return dense + expert
        by_dense, by_expert = self.shards(workload)
        return dense / by_dense + expert / by_expert

    def reduction(self, workload: Workload, part: WeightSet, name: str = "grad") -> tuple[Collective, ...]:
        """Returns the reduction of the gradients ``part``: reduce-scatter where state is sharded, else all-reduce.

        Where several groups hold a whole state each, the shards are all-reduced between them after that.
        """
        ops: list[Collective] = []
        for label, group, elements, groups in self._shared(workload, part, name):
            nbytes = elements * self.reduce_bytes
            if not self.divided:
                ops.append(Collective(f"{label}_all_reduce", "all_reduce", group, nbytes))
                continue
            inner = _ranks(workload, group) // groups
            shard, replicas = (f"{group}_shard", f"{group}_replicate") if groups > 1 else (group, "")
            if inner > 1:
                ops.append(Collective(f"{label}_reduce_scatter", "reduce_scatter", shard, nbytes))
            if replicas:
                op = Collective(f"{label}_replicas", "all_reduce", replicas, nbytes / inner)
                ops.append(op)
        return tuple(ops)

    def gather(self, workload: Workload, part: WeightSet, name: str = "param") -> tuple[Collective, ...]:
        """Returns the all-gather of the weights ``part`` over the ranks that share them; nothing where none are divided."""
        if not self.divided:
            return ()
        return tuple(
            Collective(
                f"{label}_all_gather",
                "all_gather",
                f"{group}_shard" if groups > 1 else group,
                self.gathered_bytes(part, expert=group == "edp"),
            )
            for label, group, _, groups in self._shared(workload, part, name)
            if _ranks(workload, group) > groups
        )

    def gathered_bytes(self, part: WeightSet, *, expert: bool) -> float:
        """Returns the bytes on the wire of one whole copy of the dense or the expert weights of ``part``."""
        products = part.only("linear").sum(expert=expert) if self.product_gather_bytes else 0.0
        return part.sum(expert=expert) * self.gather_bytes + products * (self.layer_gather_bytes - self.gather_bytes)

    @property
    def layer_gather_bytes(self) -> float:
        """Returns the bytes of a gathered weight of a layer: nearly all weights of a layer have products."""
        return self.product_gather_bytes or self.gather_bytes

    def _shared(self, workload: Workload, part: WeightSet, name: str) -> Iterator[tuple[str, str, float, int]]:
        """Yields (name, group, elements, groups with a whole state) of dense and expert weights that several ranks have."""
        dense, expert = self.copies(workload)
        if part.dense and _ranks(workload, "dp") > 1:
            yield name, "dp", part.dense, dense
        if part.expert and _ranks(workload, "edp") > 1:
            yield f"{name}_expert", "edp", part.expert, expert

    def buckets(self, workload: Workload, part: WeightSet, stage: int) -> tuple[float, float]:
        """Returns, for the weights ``part`` of a virtual ``stage``, the share of their reduction that is its last
        bucket, and of their gather that is its first."""
        return _BUCKET_SHARE, _BUCKET_SHARE

    def main_weight(self, recipe: Recipe) -> tuple[float, bool]:
        """Returns the bytes of the optimizer's own copy of a weight (0: it has none), and whether the precision-aware
        optimizer keeps only what bf16 lacks of that copy and updates the model's own beside it, in one kernel
        (TransformerEngine pytorch/optimizers/fused_adam.py, ``store_param_remainders``; set by Megatron-LM)."""
        if not self.master_bytes or not recipe.use_precision_aware_optimizer:
            return self.master_bytes, False
        main = least(self.master_bytes, WIDTH[recipe.main_params_dtype or "fp32"])
        return main, main >= 4.0 and recipe.precision not in ("fp16", "fp32") and not recipe.fp8_param_gather

    def gathers_every_microbatch(self, recipe: Recipe) -> bool:
        """Returns whether weights are gathered unit by unit for each pass, instead of once per step."""
        return False

    def reduces_every_microbatch(self, workload: Workload) -> bool:
        """Returns whether gradients are reduced in each micro-batch, instead of after the last."""
        return "gradients" in self.divided

    def keeps_whole_gradients(self, workload: Workload) -> bool:
        """Returns whether divided gradients are whole between micro-batches, in the type of their reduction."""
        return False

    def reduces_beside_backward(self, recipe: Recipe) -> bool:
        """Returns whether a reduction in each micro-batch runs beside the compute of its unit."""
        return True

    def overlaps_last_reduction(self, recipe: Recipe) -> bool:
        """Returns whether a reduction after the last micro-batch runs beside its backward, bucket by bucket."""
        return bool(recipe.overlap_grad_reduce)

    def hidden_share(self, opaque: bool) -> float:
        """Returns the share of a unit's weight traffic that hides behind its compute; ``opaque``: in a compiler's
        custom calls."""
        return self.overlap * (self.opaque_overlap if opaque else 1.0)

    def copied(
        self, unit: str, workload: Workload, elements: float, activation_bytes: float
    ) -> tuple[tuple[Operator, ...], tuple[Operator, ...], tuple[Operator, ...]]:
        """Returns the copies around a unit of ``elements`` trained weights: before forward, before and after backward."""
        return (), (), ()

    def beside_gradients(self, workload: Workload) -> float:
        """Returns the bytes of an element that live beside the accumulated gradient."""
        return self.kept_gradient_bytes

    def gathered(self, recipe: Recipe, whole: float, unit: float, embedding: float, head: float) -> Gathered:
        """Returns the bytes that a rank of ``whole`` weights holds gathered for a while. ``unit``: elements of the
        largest layer; ``embedding``, ``head``: of the ends of the model."""
        return Gathered()

    @property
    def optimizer_grad_bytes(self) -> float:
        """Returns the bytes of one gradient as the optimizer reads it."""
        return 4.0


def _ranks(workload: Workload, group: str) -> int:
    """Returns the ranks that reduce the same gradients: dense (``dp``) or of experts (``edp``)."""
    return workload.edp if group == "edp" else workload.dp * workload.recipe.cp
