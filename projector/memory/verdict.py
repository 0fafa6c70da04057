"""Turns allocated bytes into the need of a device: allocator slack, context, communicators, and whether it fits."""

from __future__ import annotations

import math
from typing import NamedTuple

from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.hardware.types import Gpu
from projector.layers.local import local
from projector.memory.tolerance import tolerance
from projector.parameter import parameter
from projector.size import where

_COMMUNICATOR = parameter(
    0.25e9,
    unit="B",
    kind="assumed",
    source="NCCL buffers of one communicator: 4 MiB simple + 4.7 MiB LL128 + 0.5 MiB LL per channel and neighbour over 16 "
    "to 32 channels (nccl@5067397c src/init.cc, src/include/device.h)",
    low=0.1e9,
    high=0.5e9,
)
TOO_CLOSE = "too close to tell"


class Need(NamedTuple):
    """Bytes that a peak requires at least (``required``) and as a rule (``expected``) of the ``usable`` ones."""

    required: float
    expected: float
    usable: float


@dataclass(frozen=True)
class Verdict:
    """Whether a peak fits. ``status``: ``fits`` (with the usual slack), ``tight`` (only if the allocator gives its cache
    back), ``out-of-memory``, or ``too-close``: required and usable are within the ``tolerance`` of the memory model, so that
    the sign of the margin is a guess. ``reserved``: what the allocator holds; ``device``: that, context and communication
    buffers; ``required``: the least a device (or the framework's own pool) must offer; ``usable``: what it offers."""

    status: str
    tolerance: float
    reserved: float
    device: float
    required: float
    usable: float

    @property
    def margin_bytes(self) -> float:
        """Returns the usable bytes less the required ones."""
        return self.usable - self.required

    @property
    def fits(self) -> bool:
        """Returns whether the margin is 0 or more; where the status is ``too-close`` the better guess."""
        return self.margin_bytes >= 0


def reserved_bytes(resolved: Resolved, allocated: float) -> float:
    """Returns what the allocator holds at a peak of ``allocated`` bytes."""
    return resolved.execution.allocator.reserved(allocated, resolved.workload.recipe.tp, _ragged(resolved))


def _ragged(resolved: Resolved) -> bool:
    """Returns whether buffers of experts differ in size from micro-batch to micro-batch."""
    workload = resolved.workload
    return workload.model.moe is not None and resolved.execution.dispatch.ragged(workload.recipe)


def communicator_bytes(resolved: Resolved) -> float:
    """Returns the buffers of process groups of more than one rank and of dispatch, outside the framework's allocator."""
    workload = resolved.workload
    recipe = workload.recipe
    dense = workload.dp * recipe.cp
    groups = (
        recipe.tp,
        recipe.tp2,
        recipe.cp,
        recipe.pp,
        recipe.ep,
        recipe.etp,
        dense,
        where(lambda ep: ep > 1, recipe.ep, workload.edp, 1),
        workload.gpus,
    )
    several: int = sum(where(lambda size: size > 1, size, 1, 0) for size in groups)
    return _COMMUNICATOR * several + resolved.execution.dispatch.device_bytes(local(resolved))


def outside(resolved: Resolved) -> float:
    """Returns the bytes of the device outside the framework's allocator: context and communication buffers."""
    allocator = resolved.execution.allocator
    peers = resolved.workload.recipe.ep - 1
    return allocator.context_bytes + allocator.peer_bytes * peers + communicator_bytes(resolved)


def device_bytes(resolved: Resolved, gpu: Gpu, allocated: float) -> float:
    """Returns the bytes that the device shows as used (nvidia-smi, rocm-smi): the allocator's, and all outside it."""
    reserved = reserved_bytes(resolved, allocated)
    return resolved.execution.allocator.on_device(reserved, gpu.memory_bytes, outside(resolved))


def need(resolved: Resolved, allocated: float, gpu: Gpu, beside: float | None = None) -> Need:
    """Returns what a peak of ``allocated`` bytes needs, and what a run can have of the device. ``beside``:
    :func:`outside`, where that is known."""
    allocator, tp = resolved.execution.allocator, resolved.workload.recipe.tp
    beside = outside(resolved) if beside is None else beside
    required, expected = allocator.needed(allocated, tp, _ragged(resolved), beside)
    return Need(required, expected, allocator.usable(gpu.memory_bytes, gpu.usable_memory_bytes))


def verdict(resolved: Resolved, allocated: float, gpu: Gpu, held: float | None = None) -> Verdict:
    """Returns whether ``allocated`` bytes fit, and what the device would show. ``held``: bytes with the allocator's
    cache, if more."""
    held = allocated if held is None else held
    found, near = need(resolved, allocated, gpu), tolerance(resolved)
    return Verdict(
        status=_status(found.expected, found.required, found.usable, near),
        tolerance=near,
        reserved=reserved_bytes(resolved, held),
        device=device_bytes(resolved, gpu, held),
        required=found.required,
        usable=found.usable,
    )


def _status(expected: float, required: float, usable: float, near: float) -> str:
    if abs(math.log(usable / required)) < near:
        return "too-close"
    if required > usable:
        return "out-of-memory"
    return "fits" if expected <= usable else "tight"
