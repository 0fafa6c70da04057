"""What a stage waits for beside its operators: activations on their way to the host, and its attention mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from projector.frameworks.types import Resolved
from projector.layers.mask import mask_bytes
from projector.mechanism import mechanism
from projector.operators.types import Collective
from projector.size import most
from projector.step.offload import layer_seconds
from projector.step.timing import Clock, Phase

if TYPE_CHECKING:
    from projector.step.stages import Part, StageTime


@mechanism(off=(0.0, 0.0))
def waits_for_host(
    resolved: Resolved, stage: Sequence[Part], times: Mapping[tuple[int, bool], StageTime]
) -> tuple[float, float]:
    """Seconds that forward and backward of a stage wait for activations on their way to host memory and back: what one
    layer leaves there travels while another computes (see :mod:`projector.step.offload`). ``times``: of
    every block (:attr:`Part.key`)."""
    recipe = resolved.workload.recipe
    if not (recipe.cpu_offloading_num_layers or recipe.offload_modules):
        return 0.0, 0.0
    forward = backward = 0.0
    for position, part in enumerate(part for part in stage if part.layers):
        seconds, time = layer_seconds(resolved, part.block, position), times[part.key]
        forward += most(0.0, seconds - time.forward.seconds)
        backward += most(0.0, seconds - time.backward.seconds)
    return forward, backward


def with_mask(forward: Phase, resolved: Resolved, stage: Sequence[Part], clock: Clock) -> Phase:
    """The forward of a stage that waits for its attention mask."""
    spread = mask(resolved, stage)
    if spread is None:
        return forward
    copied, sent = spread.bytes / resolved.host_bandwidth, clock.collective(spread)
    return replace(forward, wait=forward.wait + copied + sent, waited={"tp": sent} if sent else {})


@mechanism(off=None)
def mask(resolved: Resolved, stage: Sequence[Part]) -> Collective | None:
    """The broadcast by which the attention mask of a micro-batch reaches the ranks of its first and last stage: copied to
    the device by the first tensor-parallel rank and sent to the others on the stream of the compute."""
    nbytes = mask_bytes(resolved)
    if not nbytes or not any(part.block.name in ("embedding", "head") for part in (*stage[:1], *stage[-1:])):
        return None
    return Collective(name="attention_mask", kind="broadcast", group="tp", bytes=nbytes)
