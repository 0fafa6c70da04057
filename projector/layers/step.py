"""Operators that a rank runs once per step or per unit of sharded data parallelism: gradients, parameters, optimizer.

Bytes follow Megatron-LM's distributed optimizer (NVIDIA/Megatron-LM@d98e8a64dd megatron/core/distributed,
core/optimizer) and PyTorch FSDP2 (pytorch/torchtitan@b5bcd76c6 torchtitan/distributed).
"""

from __future__ import annotations

from projector.frameworks.types import Resolved
from projector.layers.optimizers import MUON, Rule, by_rule, moments, widened
from projector.operators.rank import WIDTH
from projector.operators.types import Operator, Stream
from projector.operators.weights import WeightSet
from projector.parameter import parameter
from projector.size import most, whole

_CHUNK = parameter(
    21e6,
    unit="elements",
    kind="published",
    source="of one multi-tensor launch (NVIDIA/TransformerEngine multi_tensor_apply.cuh)",
)


def fraction_on_host(resolved: Resolved) -> float:
    """Returns the share of the optimizer that the host runs."""
    recipe = resolved.workload.recipe
    if not recipe.optimizer_cpu_offload or recipe.optimizer in MUON:
        return 0.0
    return 1.0 if recipe.optimizer_offload_fraction is None else recipe.optimizer_offload_fraction


def optimizer(resolved: Resolved, part: WeightSet) -> tuple[Operator, ...]:
    """Returns what the device does between the last gradient and the next forward: norm, clip, the passes of the update
    rule, cast, whole-buffer passes. Muon's products and the host's part come on top."""
    recipe, execution = resolved.workload.recipe, resolved.execution
    resident = execution.data_parallel.resident("states", resolved.workload, part.dense, part.expert)
    launches = whole(resident // _CHUNK) + 1
    grad = resolved.execution.data_parallel.optimizer_grad_bytes
    # bytes of one weight that Adam reads and writes, and of the model's copy (0: no pass of its own)
    own, halved = execution.data_parallel.main_weight(recipe)
    width = execution.data_parallel.parameter_bytes
    main, cast = own or width, width if own and not halved else 0.0
    on_device = 1.0 - fraction_on_host(resolved)
    ops: list[Operator] = [
        *_accumulated(resolved, part),
        _pass("grad_norm", resident, grad, 0.0, launches),
        _pass("clip", resident, grad, grad, launches),
    ]
    for rule, updated in by_rule(recipe, part):
        ops += _update(resolved, rule, updated, main, on_device)
    if not execution.runtime.whole_step:
        for word in widened(recipe, execution.fusion.bf16_moments):
            ops += _widened(resident * on_device, word, launches)
    if cast:
        ops.append(_pass("copy_to_model", resident * on_device, main, cast, launches))
    if execution.data_parallel.clears_buffers and not execution.runtime.whole_step:
        ops.append(_pass("zero_grad", part.total, 0.0, grad, 1))
        ops.append(_pass("scale_grad", part.total, grad, grad, 1))
        if recipe.check_for_nan_in_loss_and_grad:
            ops.append(_pass("nan_norm", part.total, grad, 0.0, 1))
    return tuple(ops)


def _accumulated(resolved: Resolved, part: WeightSet) -> list[Operator]:
    """Adds the gradients of each later micro-batch to those kept from the first: by autograd, tensor by tensor
    (pytorch/pytorch torch/csrc/autograd/functions/accumulate_grad.h, ``accumulateGrad``); a rank's shards of what each
    micro-batch reduces, beside its backward (torch distributed/fsdp: _fully_shard/_fsdp_collectives.py
    ``foreach_reduce``, _runtime_utils.py ``_accumulate_sharded_grad``)."""
    later, sharing = resolved.autograd_sums, resolved.execution.data_parallel
    if not later:
        return []
    grad, kept, launches = sharing.grad_bytes, part.total, round(sum(part.weights.values()))
    if sharing.reduces_every_microbatch(resolved.workload):
        kept, launches = sharing.resident("gradients", resolved.workload, part.dense, part.expert), 1
    return [_pass("accumulate", later * kept, 2 * grad, grad, later * launches)]


def _update(resolved: Resolved, rule: Rule, part: WeightSet, main: float, on_device: float) -> list[Operator]:
    """Returns the passes of one update rule over the weights that a rank has of ``part``."""
    dense, expert = resolved.execution.data_parallel.shards(resolved.workload)
    elements = (part.dense / dense + part.expert / expert) * on_device
    if not elements:
        return []
    compiled, grad = resolved.execution.runtime.whole_step, resolved.execution.data_parallel.optimizer_grad_bytes
    recipe = resolved.workload.recipe
    state = moments(recipe, rule, part, dense, expert) * on_device / elements
    if not compiled:  # the kernel reads and writes widened states in fp32
        state += sum(4.0 - WIDTH[word] for word in widened(recipe, resolved.execution.fusion.bf16_moments))
    launches = whole(elements // _CHUNK) + 1
    if rule.each_tensor and not compiled:
        launches = most(launches, round(sum(part.weights.values()) * elements / part.total))
    return [
        _pass(
            one_pass.name,
            elements,
            one_pass.gradient[0] * grad + one_pass.weight[0] * main + one_pass.state[0] * state + one_pass.scratch[0],
            one_pass.gradient[1] * grad + one_pass.weight[1] * main + one_pass.state[1] * state + one_pass.scratch[1],
            launches,
        )
        for one_pass in rule.passes(compiled)
    ]


def _widened(elements: float, word: str, launches: int) -> list[Operator]:
    """Returns the copies of a state to fp32 before the update and back after it: bf16 converted, then copied into place,
    else its largest value, the scaling and the copy (NVIDIA/TransformerEngine v2.12 pytorch/optimizers/fused_adam.py)."""
    width = WIDTH[word]
    passes = [("widen", width, 4.0)]
    if word == "bf16":
        passes += [("narrow", 4.0, width), ("store_state", width, width)]
    else:
        passes += [("largest", 4.0, 0.0), ("scale_state", 4.0, 4.0), ("narrow", 4.0, width)]
    return [_pass(name, elements, read, write, launches) for name, read, write in passes]


def _pass(name: str, elements: float, read: float, write: float, launches: int) -> Stream:
    return Stream(name, "optimizer", elements * read, elements * write, launches=launches)
