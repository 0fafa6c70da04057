"""Seconds of what a rank does once a step beside its pipeline: its gradients reduced, its parameters gathered, its weights
stepped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from projector.frameworks.types import Resolved
from projector.layers.step import optimizer
from projector.operators.types import Collective
from projector.operators.weights import Held
from projector.step import muon, offload
from projector.step.timing import Clock


class Around(NamedTuple):
    """Seconds of one rank."""

    reduce: float
    gather: float
    optimizer: float


def around(resolved: Resolved, clock: Clock, whole: Held) -> Around:
    """Of a rank that holds ``whole``. What it depends on beside weights must stand in the key of
    :mod:`projector.step.batch`, by which runs share it."""
    workload, sharing = resolved.workload, resolved.execution.data_parallel
    reduced, gathered = (
        sharing.reduces_every_microbatch(workload),
        sharing.gathers_every_microbatch(workload.recipe),
    )
    on_device = clock.phase(optimizer(resolved, whole)).seconds + muon.seconds(resolved, whole, clock)
    return Around(
        0.0 if reduced else together(clock, sharing.reduction(workload, whole)),
        0.0 if gathered else together(clock, sharing.gather(workload, whole)),
        on_device + offload.optimizer_seconds(resolved, whole),
    )


def together(clock: Clock, ops: Sequence[Collective]) -> float:
    """Seconds of collectives one after the other."""
    return sum(clock.collective(op) for op in ops)
