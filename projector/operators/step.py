"""What a rank does once per step or once per unit of sharded data parallelism: gradients, parameters, optimizer.

Bytes follow Megatron-LM's distributed optimizer (NVIDIA/Megatron-LM@d98e8a64dd megatron/core/distributed,
core/optimizer) and PyTorch FSDP2 (pytorch/torchtitan@b5bcd76c6 torchtitan/distributed).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from projector.frameworks.types import Resolved
from projector.operators.types import Collective, Operator, Stream

__all__ = ["Trainable", "copies", "gather", "optimizer", "reduction", "shards", "trainable"]

_STATE_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
_ADAM_CHUNK = 21e6  # elements one multi-tensor launch covers (NVIDIA/TransformerEngine multi_tensor_apply.cuh)


@dataclass(frozen=True, slots=True)
class Trainable:
    """Elements of one rank that receive gradients: ``dense`` (reduced over dp·cp) and ``expert`` (reduced over edp)."""

    dense: float
    expert: float

    def __add__(self, other: Trainable) -> Trainable:
        return Trainable(self.dense + other.dense, self.expert + other.expert)

    @property
    def total(self) -> float:
        return self.dense + self.expert


def trainable(resolved: Resolved, parameters: float, expert_parameters: float, layers: int) -> Trainable:
    """Of a rank's weights (``parameters`` dense, ``expert_parameters`` of routed experts) those that are trained.

    Under LoRA only the adapters of ``layers`` layers are: dim·(in + out) elements for each target.
    """
    lora = resolved.workload.recipe.lora
    if lora is None:
        return Trainable(parameters, expert_parameters)
    model, tp = resolved.workload.model, resolved.workload.recipe.tp
    h, q = model.hidden_size, model.num_attention_heads * model.kv_channels
    kv = model.num_query_groups * model.kv_channels
    sides = {"linear_qkv": h + q + 2 * kv, "linear_proj": q + h}
    sides |= {"linear_fc1": h + 2 * model.ffn_hidden_size, "linear_fc2": model.ffn_hidden_size + h}
    return Trainable(layers * lora.dim * sum(sides.get(t, 2 * h) for t in lora.targets) / tp, 0.0)


def shards(resolved: Resolved) -> tuple[int, int]:
    """Ranks that share one optimizer state: (dense, expert)."""
    recipe = resolved.workload.recipe
    if recipe.data_parallel_sharding == "no_shard":
        return 1, 1
    dense, expert = copies(resolved)
    return max(1, resolved.workload.dp * recipe.cp // dense), resolved.workload.edp // expert


def copies(resolved: Resolved) -> tuple[int, int]:
    """Groups that each hold one whole state among them, dense and expert: replicas of HSDP, or instances of the partial
    distributed optimizer (Megatron-LM core/parallel_state.py, ``num_distributed_optimizer_instances``)."""
    workload, recipe = resolved.workload, resolved.workload.recipe
    ranks = workload.dp * recipe.cp
    dense = max(recipe.num_distributed_optimizer_instances or 1, ranks // (recipe.data_parallel_shard_size or ranks))
    return dense, dense if workload.edp % dense == 0 else 1


def reduction(resolved: Resolved, part: Trainable, name: str = "grad") -> tuple[Collective, ...]:
    """Reduction of the gradients ``part``: reduce-scatter where state is sharded, all-reduce elsewhere.

    Where several groups hold a whole state each, the shards are all-reduced between them after that.
    """
    workload, wire = resolved.workload, resolved.execution.reduce_bytes
    if workload.recipe.data_parallel_sharding == "no_shard":
        kinds = ((name, "dp", part.dense), (f"{name}_expert", "edp", part.expert))
        return tuple(
            Collective(name=f"{label}_all_reduce", kind="all_reduce", group=group, bytes=elements * wire)
            for label, group, elements in kinds
            if elements and _ranks(resolved, group) > 1
        )
    ops: list[Collective] = []
    for label, group, elements, groups in _sharded(resolved, part, name):
        inner = _ranks(resolved, group) // groups
        nbytes = elements * wire
        shard, replicas = (f"{group}_shard", f"{group}_replicate") if groups > 1 else (group, "")
        if inner > 1:
            ops.append(Collective(name=f"{label}_reduce_scatter", kind="reduce_scatter", group=shard, bytes=nbytes))
        if replicas:
            op = Collective(name=f"{label}_replicas", kind="all_reduce", group=replicas, bytes=nbytes / inner)
            ops.append(op)
    return tuple(ops)


def _ranks(resolved: Resolved, group: str) -> int:
    """Ranks that reduce the same gradients: dense (``dp``) or of experts (``edp``)."""
    workload = resolved.workload
    return workload.edp if group == "edp" else workload.dp * workload.recipe.cp


def _sharded(resolved: Resolved, part: Trainable, name: str) -> Iterator[tuple[str, str, float, int]]:
    """(name, group, elements, groups with a whole state) of the dense and the expert weights that several ranks have."""
    dense, expert = copies(resolved)
    if part.dense and _ranks(resolved, "dp") > 1:
        yield name, "dp", part.dense, dense
    if part.expert and _ranks(resolved, "edp") > 1:
        yield f"{name}_expert", "edp", part.expert, expert


def gather(resolved: Resolved, part: Trainable, name: str = "param") -> tuple[Collective, ...]:
    """All-gather of the weights ``part`` over the ranks that share them; nothing where every rank keeps its own."""
    recipe = resolved.workload.recipe
    if recipe.data_parallel_sharding == "no_shard":
        return ()
    return tuple(
        Collective(
            name=f"{label}_all_gather",
            kind="all_gather",
            group=f"{group}_shard" if groups > 1 else group,
            bytes=elements * resolved.execution.gather_bytes,
        )
        for label, group, elements, groups in _sharded(resolved, part, name)
        if _ranks(resolved, group) > groups
    )


def _weight_bytes(resolved: Resolved) -> tuple[float, float]:
    """Bytes of one weight that Adam reads and writes, and of the copy that the model keeps (0: no pass of its own).

    The precision-aware optimizer keeps what bf16 lacks of an fp32 weight and updates the model's own beside it, in one
    kernel (TransformerEngine pytorch/optimizers/fused_adam.py, ``store_param_remainders``).
    """
    recipe, execution = resolved.workload.recipe, resolved.execution
    if not execution.master_bytes:
        return execution.parameter_bytes, 0.0
    if not recipe.use_precision_aware_optimizer:
        return execution.master_bytes, execution.parameter_bytes
    stated = _STATE_BYTES[recipe.main_params_dtype or "fp32"]
    in_place = stated >= 4.0 and recipe.precision not in ("fp16", "fp32") and not recipe.fp8_param_gather
    return min(execution.master_bytes, stated), 0.0 if in_place else execution.parameter_bytes


def optimizer(resolved: Resolved, part: Trainable) -> tuple[Operator, ...]:
    """Everything between the last gradient and the next forward: norm, clip, Adam, cast, whole-buffer passes."""
    recipe, execution = resolved.workload.recipe, resolved.execution
    dense, expert = shards(resolved)
    own = part.dense / dense + part.expert / expert
    launches = int(own // _ADAM_CHUNK) + 1
    grad = execution.grad_bytes if execution.data_parallel == "ddp" else 4.0
    moments = _STATE_BYTES[recipe.exp_avg_dtype or "fp32"] + _STATE_BYTES[recipe.exp_avg_sq_dtype or "fp32"]
    main, cast = _weight_bytes(resolved)
    state = main + moments
    ops: list[Operator] = [
        _pass("grad_norm", own, grad, 0.0, launches),
        _pass("clip", own, grad, grad, launches),
        _pass("adam", own, state + grad, state, launches),
    ]
    if cast:
        ops.append(_pass("copy_to_model", own, main, cast, launches))
    if execution.data_parallel == "ddp" and not execution.whole_step_compiled:
        ops.append(_pass("zero_grad", part.total, 0.0, grad, 1))
        ops.append(_pass("scale_grad", part.total, grad, grad, 1))
        if recipe.check_for_nan_in_loss_and_grad:
            ops.append(_pass("nan_norm", part.total, grad, 0.0, 1))
    return tuple(ops)


def _pass(name: str, elements: float, read: float, write: float, launches: int) -> Stream:
    return Stream(name=name, kind="optimizer", read=elements * read, write=elements * write, launches=launches)
