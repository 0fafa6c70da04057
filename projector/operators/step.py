"""What a rank does once per step or once per unit of sharded data parallelism: gradients, parameters, optimizer.

Bytes follow Megatron-LM's distributed optimizer (NVIDIA/Megatron-LM@d98e8a64dd megatron/core/distributed,
core/optimizer) and PyTorch FSDP2 (pytorch/torchtitan@b5bcd76c6 torchtitan/distributed).
"""

from __future__ import annotations

from dataclasses import dataclass

from projector.frameworks.types import Resolved
from projector.operators.types import Collective, Operator, Stream

__all__ = ["Trainable", "gather", "optimizer", "reduction", "shards", "trainable"]

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
    instances = recipe.num_distributed_optimizer_instances or 1
    return max(1, (recipe.data_parallel_shard_size or 1) // instances), resolved.workload.edp


def reduction(resolved: Resolved, part: Trainable, name: str = "grad") -> tuple[Collective, ...]:
    """Reduction of the gradients ``part``: reduce-scatter where state is sharded, all-reduce elsewhere."""
    wire = resolved.execution.reduce_bytes
    recipe = resolved.workload.recipe
    kind = "all_reduce" if recipe.data_parallel_sharding == "no_shard" else "reduce_scatter"
    ops = []
    ranks = resolved.workload.dp * recipe.cp
    hybrid = kind == "reduce_scatter" and (recipe.data_parallel_shard_size or ranks) < ranks
    group = "dp_shard" if hybrid else "dp"
    if part.dense and ranks > 1:
        ops.append(Collective(name=f"{name}_{kind}", kind=kind, group=group, bytes=part.dense * wire))
        if hybrid:
            shard = part.dense * wire / (recipe.data_parallel_shard_size or 1)
            ops.append(Collective(name=f"{name}_replicas", kind="all_reduce", group="dp_replicate", bytes=shard))
    if part.expert and resolved.workload.edp > 1:
        ops.append(Collective(name=f"{name}_expert_{kind}", kind=kind, group="edp", bytes=part.expert * wire))
    return tuple(ops)


def gather(resolved: Resolved, part: Trainable, name: str = "param") -> tuple[Collective, ...]:
    """All-gather of the weights ``part`` over the ranks that share them; nothing where every rank keeps its own."""
    recipe = resolved.workload.recipe
    if recipe.data_parallel_sharding == "no_shard":
        return ()
    wire = resolved.execution.gather_bytes
    ops = []
    ranks = resolved.workload.dp * recipe.cp
    group = "dp_shard" if (recipe.data_parallel_shard_size or ranks) < ranks else "dp"
    if part.dense and ranks > 1:
        ops.append(Collective(name=f"{name}_all_gather", kind="all_gather", group=group, bytes=part.dense * wire))
    if part.expert and resolved.workload.edp > 1:
        ops.append(
            Collective(name=f"{name}_expert_all_gather", kind="all_gather", group="edp", bytes=part.expert * wire)
        )
    return tuple(ops)


def optimizer(resolved: Resolved, part: Trainable) -> tuple[Operator, ...]:
    """Everything between the last gradient and the next forward: norm, clip, Adam, cast, whole-buffer passes."""
    recipe, execution = resolved.workload.recipe, resolved.execution
    dense, expert = shards(resolved)
    own = part.dense / dense + part.expert / expert
    launches = int(own // _ADAM_CHUNK) + 1
    grad = execution.grad_bytes if execution.data_parallel == "ddp" else 4.0
    moments = _STATE_BYTES[recipe.exp_avg_dtype or "fp32"] + _STATE_BYTES[recipe.exp_avg_sq_dtype or "fp32"]
    main = execution.master_bytes or execution.parameter_bytes
    cast = execution.parameter_bytes if execution.master_bytes else 0.0
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
