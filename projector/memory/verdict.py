"""From allocated bytes to what the device must have: allocator slack, context, communicators, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass

from projector.frameworks.types import Resolved

__all__ = ["Verdict", "communicator_bytes", "reserved_bytes", "verdict"]

# Reserved over allocated in 12 measured configurations (SimuMax B200 results, MooreThreads/SimuMax @4dcaae513ba7): mean
# 1.05, without tensor parallelism 1.068, with it 1.033. Fitted: how a framework's mean slack splits into the two.
_SLACK_TP1, _SLACK_TP = 0.068 / 0.05, 0.033 / 0.05
# The allocator gives cached blocks back before it fails; this share of the allocated bytes it cannot (estimate: the
# lowest measured slack is 1.028, and part of that is cache).
_UNAVOIDABLE = 0.02
# NCCL buffers of one communicator: 4 MiB simple + 4.7 MiB LL128 + 0.5 MiB LL per channel and neighbour over 16 to 32
# channels (nccl@5067397c src/init.cc, src/include/device.h): 0.1 to 0.5 GB; estimate.
_COMMUNICATOR = 0.25e9
# DeepEP keeps its buffers outside the framework's allocator (deepseek-ai/DeepEP@dd758caf csrc/config.hpp); estimate.
_DEEPEP = 0.5e9


@dataclass(frozen=True, slots=True)
class Verdict:
    """``status``: ``fits`` (with the usual slack), ``tight`` (only if the allocator gives its cache back) or
    ``out-of-memory``. ``margin``: usable bytes minus what is *required*; negative when it does not fit."""

    status: str
    reserved: float
    device: float
    required: float
    margin: float


def reserved_bytes(resolved: Resolved, allocated: float) -> float:
    """What the caching allocator holds at a peak of ``allocated`` bytes."""
    slack = resolved.execution.reserved_over_allocated - 1.0
    return allocated * (1.0 + slack * (_SLACK_TP1 if resolved.workload.recipe.tp == 1 else _SLACK_TP))


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


def verdict(resolved: Resolved, allocated: float, usable: float) -> Verdict:
    """Compares with ``usable`` bytes of the device (physical minus what the driver keeps)."""
    outside = resolved.execution.context_bytes + communicator_bytes(resolved)
    reserved = reserved_bytes(resolved, allocated)
    required = min(reserved, allocated * (1.0 + _UNAVOIDABLE)) + outside
    device = reserved + outside
    status = "fits" if device <= usable else "tight" if required <= usable else "out-of-memory"
    return Verdict(status, reserved, device, required, usable - required)
