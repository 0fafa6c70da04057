"""What a stage waits for beside its operators: activations on their way to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from projector.frameworks.types import Resolved
from projector.mechanism import mechanism
from projector.size import most
from projector.step.offload import layer_seconds

if TYPE_CHECKING:
    from projector.step.stages import Part, StageTime


def offloads(resolved: Resolved) -> bool:
    """Whether activations of some layers are on the host meanwhile."""
    recipe = resolved.workload.recipe
    return bool(recipe.cpu_offloading_num_layers or recipe.offload_modules)


@mechanism(off=(0.0, 0.0))
def waits_for_host(
    resolved: Resolved, stage: Sequence[Part], times: Mapping[tuple[int, bool], StageTime]
) -> tuple[float, float]:
    """Seconds that forward and backward of a stage wait for activations on their way to host memory and back: what one
    layer leaves there travels while another computes (see :mod:`projector.step.offload`). ``times``: of
    every block (:attr:`Part.key`)."""
    if not offloads(resolved):
        return 0.0, 0.0
    forward = backward = 0.0
    for position, part in enumerate(part for part in stage if part.layers):
        seconds, time = layer_seconds(resolved, part.block, position), times[part.key]
        forward += most(0.0, seconds - time.forward.seconds)
        backward += most(0.0, seconds - time.backward.seconds)
    return forward, backward
