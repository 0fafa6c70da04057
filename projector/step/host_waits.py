"""Waits of a stage beside its operators: for activations on their way to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from projector.frameworks.types import Resolved
from projector.mechanism import mechanism
from projector.size import most
from projector.step.offload import layer_seconds

if TYPE_CHECKING:
    from projector.step.stages import StageBlock, StageTime


def activations_on_host(resolved: Resolved) -> bool:
    """Returns whether activations of some layers wait in host memory."""
    recipe = resolved.workload.recipe
    return bool(recipe.cpu_offloading_num_layers or recipe.offload_modules)


@mechanism(off=(0.0, 0.0))
def waits_for_host(resolved: Resolved, blocks: Sequence[tuple[StageBlock, StageTime]]) -> tuple[float, float]:
    """Returns the seconds that forward and backward of a stage of these ``blocks`` wait for activations on their way to
    host memory and back: those of one layer travel while another computes (see :mod:`projector.step.offload`)."""
    forward = backward = 0.0
    for position, (part, time) in enumerate(each for each in blocks if each[0].layers):
        seconds = layer_seconds(resolved, part.block, position)
        forward += most(0.0, seconds - time.forward.seconds)
        backward += most(0.0, seconds - time.backward.seconds)
    return forward, backward
