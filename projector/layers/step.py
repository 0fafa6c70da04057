"""What a rank does once per step or once per unit of sharded data parallelism: gradients, parameters, optimizer.

Bytes follow Megatron-LM's distributed optimizer (NVIDIA/Megatron-LM@d98e8a64dd megatron/core/distributed,
core/optimizer) and PyTorch FSDP2 (pytorch/torchtitan@b5bcd76c6 torchtitan/distributed).
"""

from __future__ import annotations

from collections.abc import Iterator

from projector.frameworks.types import Resolved
from projector.layers.types import Collective, Operator, Stream
from projector.layers.weights import Held

__all__ = [
    "MUON",
    "copies",
    "fraction_on_host",
    "gather",
    "moment_bytes",
    "optimizer",
    "reduction",
    "shards",
]

MUON = ("muon", "dist_muon")
MOMENTS = {"adam": 2, "adamw": 2, "sgd": 1, "lion": 1, "muon": 1, "dist_muon": 1, "adafactor": 0}
"""Moments an optimizer keeps of each parameter (two where none is listed; Muon: of each matrix, two of the rest;
Adafactor's factored rows and columns are negligible)."""

_STATE_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
_ADAM_CHUNK = 21e6  # elements one multi-tensor launch covers (NVIDIA/TransformerEngine multi_tensor_apply.cuh)


def shards(resolved: Resolved) -> tuple[int, int]:
    """Ranks that share one optimizer state, dense (of dp · cp) and expert (of expert data parallelism)."""
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


def reduction(resolved: Resolved, part: Held, name: str = "grad") -> tuple[Collective, ...]:
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


def _sharded(resolved: Resolved, part: Held, name: str) -> Iterator[tuple[str, str, float, int]]:
    """(name, group, elements, groups with a whole state) of the dense and the expert weights that several ranks have."""
    dense, expert = copies(resolved)
    if part.dense and _ranks(resolved, "dp") > 1:
        yield name, "dp", part.dense, dense
    if part.expert and _ranks(resolved, "edp") > 1:
        yield f"{name}_expert", "edp", part.expert, expert


def gather(resolved: Resolved, part: Held, name: str = "param") -> tuple[Collective, ...]:
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


def fraction_on_host(resolved: Resolved) -> float:
    """Share of the optimizer that the host runs."""
    recipe = resolved.workload.recipe
    if not recipe.optimizer_cpu_offload or recipe.optimizer in MUON:
        return 0.0
    return 1.0 if recipe.optimizer_offload_fraction is None else recipe.optimizer_offload_fraction


def moment_bytes(resolved: Resolved) -> float:
    """Bytes of the moments of one parameter (of one of a matrix under Muon)."""
    recipe = resolved.workload.recipe
    each = (_STATE_BYTES[recipe.exp_avg_dtype or "fp32"], _STATE_BYTES[recipe.exp_avg_sq_dtype or "fp32"])
    return sum(each[: MOMENTS.get((recipe.optimizer or "adam").lower(), 2)])


def optimizer(resolved: Resolved, part: Held) -> tuple[Operator, ...]:
    """What the device does between the last gradient and the next forward: norm, clip, Adam (or another rule that reads and
    writes each state once), cast, whole-buffer passes. Muon's products and the host's part come on top."""
    recipe, execution = resolved.workload.recipe, resolved.execution
    dense, expert = shards(resolved)
    own = part.dense / dense + part.expert / expert
    launches = int(own // _ADAM_CHUNK) + 1
    grad = execution.grad_bytes if execution.data_parallel == "ddp" else 4.0
    main, cast = _weight_bytes(resolved)
    state = main + moment_bytes(resolved)
    here = own * (1.0 - fraction_on_host(resolved))
    ops: list[Operator] = [
        _pass("grad_norm", own, grad, 0.0, launches),
        _pass("clip", own, grad, grad, launches),
        _pass("adam", here, state + grad, state, launches),
    ]
    if cast:
        ops.append(_pass("copy_to_model", here, main, cast, launches))
    if execution.data_parallel == "ddp" and not execution.whole_step_compiled:
        ops.append(_pass("zero_grad", part.total, 0.0, grad, 1))
        ops.append(_pass("scale_grad", part.total, grad, grad, 1))
        if recipe.check_for_nan_in_loss_and_grad:
            ops.append(_pass("nan_norm", part.total, grad, 0.0, 1))
    return tuple(ops)


def _pass(name: str, elements: float, read: float, write: float, launches: int) -> Stream:
    return Stream(name=name, kind="optimizer", read=elements * read, write=elements * write, launches=launches)
