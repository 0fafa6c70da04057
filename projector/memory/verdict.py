"""From allocated bytes to what the device must have: allocator slack, context, communicators, and whether it fits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from projector.frameworks.types import Resolved
from projector.hardware.types import Gpu
from projector.memory.tolerance import tolerance
from projector.parameter import parameter

__all__ = [
    "TOO_CLOSE",
    "Verdict",
    "communicator_bytes",
    "device_bytes",
    "outside_bytes",
    "ragged_slack",
    "reserved_bytes",
    "usable_bytes",
    "verdict",
]

# How reserved over allocated lies around a framework's mean, without tensor parallelism and with it.
_SLACK_TP1, _SLACK_TP = parameter(
    (0.068 - 0.05, 0.033 - 0.05),
    kind="fitted",
    source="12 measured configurations (SimuMax B200 results, MooreThreads/SimuMax @4dcaae513ba7): mean 1.05, without "
    "tensor parallelism 1.068, with it 1.033",
    scored=True,
)
# The allocator gives cached blocks back before it fails; this share of the allocated bytes it cannot.
_UNAVOIDABLE = parameter(
    0.02,
    kind="assumed",
    source="the lowest measured slack is 1.028, and part of that is cache",
    low=0.0,
    high=0.028,
    scored=True,
)
_COMMUNICATOR = parameter(
    0.25e9,
    unit="B",
    kind="assumed",
    source="NCCL buffers of one communicator: 4 MiB simple + 4.7 MiB LL128 + 0.5 MiB LL per channel and neighbour over 16 "
    "to 32 channels (nccl@5067397c src/init.cc, src/include/device.h)",
    low=0.1e9,
    high=0.5e9,
)
_DEEPEP = parameter(
    0.5e9,
    unit="B",
    kind="assumed",
    source="DeepEP keeps its buffers outside the framework's allocator (deepseek-ai/DeepEP@dd758caf csrc/config.hpp)",
)
TOO_CLOSE = "too close to tell"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``status``: ``fits`` (with the usual slack), ``tight`` (only if the allocator gives its cache back),
    ``out-of-memory``, or ``too-close``: required and usable are within the ``tolerance`` of the memory model, so that the
    sign of the margin is a guess. ``usable``: what the run can have; ``margin``: usable minus *required*."""

    status: str
    tolerance: float
    reserved: float
    device: float
    required: float
    usable: float
    margin: float


def usable_bytes(resolved: Resolved, gpu: Gpu) -> float:
    """What a run can allocate of the device: all that the driver leaves, or a pool that is taken at start (JAX)."""
    share = resolved.execution.allocator.pool_fraction
    return min(share * gpu.memory_bytes, gpu.usable_memory_bytes) if share else gpu.usable_memory_bytes


def reserved_bytes(resolved: Resolved, allocated: float) -> float:
    """What the allocator holds at a peak of ``allocated`` bytes: with the slack of cached blocks, unless a compiler
    placed every buffer of the step ahead of time."""
    if resolved.execution.allocator.planned:
        return allocated
    shift = _SLACK_TP1 if resolved.workload.recipe.tp == 1 else _SLACK_TP
    slack = max(0.0, resolved.execution.allocator.reserved_over_allocated + shift - 1.0)
    return allocated * (1.0 + slack + ragged_slack(resolved))


def ragged_slack(resolved: Resolved) -> float:
    """Share of the allocated bytes lost between segments because buffers differ in size from micro-batch to micro-batch:
    dropless experts behind an all-to-all. Split segments cannot be given back, so all of it is needed."""
    recipe, moe = resolved.workload.recipe, resolved.workload.model.moe
    ragged = moe is not None and recipe.ep > 1 and recipe.moe_token_dispatcher_type == "alltoall"
    fixed = recipe.moe_pad_expert_input_to_capacity
    return resolved.execution.allocator.ragged_slack if ragged and not fixed else 0.0


def communicator_bytes(resolved: Resolved) -> float:
    """Buffers of the process groups that have more than one rank, outside the framework's allocator."""
    workload = resolved.workload
    recipe = workload.recipe
    dense = workload.dp * recipe.cp
    groups = (
        recipe.tp,
        recipe.cp,
        recipe.pp,
        recipe.ep,
        recipe.etp,
        dense,
        workload.edp if recipe.ep > 1 else 1,
        workload.gpus,
    )
    buffers = _DEEPEP if recipe.ep > 1 and recipe.moe_token_dispatcher_type == "flex" else 0.0
    return _COMMUNICATOR * sum(size > 1 for size in groups) + buffers


def outside_bytes(resolved: Resolved) -> float:
    """Context and communication buffers: bytes of the device outside the framework's allocator."""
    return resolved.execution.allocator.context_bytes + communicator_bytes(resolved)


def device_bytes(resolved: Resolved, gpu: Gpu, allocated: float) -> float:
    """What the device shows as used (nvidia-smi, rocm-smi): the allocator's, or its whole pool, and all outside it."""
    pool = resolved.execution.allocator.pool_fraction * gpu.memory_bytes
    return max(pool, reserved_bytes(resolved, allocated)) + outside_bytes(resolved)


def verdict(resolved: Resolved, allocated: float, gpu: Gpu) -> Verdict:
    """Compares with the usable bytes of the device (physical minus what the driver keeps), or of the framework's pool,
    outside which context and communicators live."""
    usable, near = usable_bytes(resolved, gpu), tolerance(resolved)
    reserved, device = reserved_bytes(resolved, allocated), device_bytes(resolved, gpu, allocated)
    required = expected = reserved
    if not resolved.execution.allocator.pool_fraction:
        required = min(reserved, allocated * (1.0 + _UNAVOIDABLE + ragged_slack(resolved))) + outside_bytes(resolved)
        expected = device
    return Verdict(
        _status(expected, required, usable, near), near, reserved, device, required, usable, usable - required
    )


def _status(expected: float, required: float, usable: float, near: float) -> str:
    if abs(math.log(usable / required)) < near:
        return "too-close"
    if required > usable:
        return "out-of-memory"
    return "fits" if expected <= usable else "tight"
