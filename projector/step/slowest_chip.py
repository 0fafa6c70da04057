"""Chips of one kind differ: all GPUs of a step wait for the slowest of them.

Under matrix load a chip's clock is what its power limit leaves, which differs from chip to chip with leakage and
cooling. Kernel tables say what a usual chip does. In synchronous training every rank waits for every other within a
step (its tensor and expert group in each layer, its pipeline in each micro-batch, its replicas at the optimizer), so
the products of a run last as long as on the slowest of N chips: with normal clocks the expected maximum of N draws
above the mean. Kernels that wait for memory keep their rate (the same study: memory-bound applications hardly differ).
"""

from __future__ import annotations

from collections.abc import Mapping

from projector.hardware.types import Efficiency
from projector.mechanism import mechanism
from projector.mechanisms.dispatch.routing import expected_maximum
from projector.operators.types import Attention, Gemm, GroupedGemm, Operator


@mechanism(off=1.0)
def slowest(efficiency: Efficiency, gpus: int) -> float:
    """Returns the time of a product on the slowest of ``gpus`` chips over that on a usual one: 1 for one chip, or for
    chips whose ``clock.spread`` (standard deviation of the sustained clock over its mean) is not stated."""
    return 1.0 + efficiency.get("clock.spread", 0.0) * expected_maximum(gpus)


def slowed(seconds: Mapping[Operator, float], factor: float) -> Mapping[Operator, float]:
    """Returns the ``seconds`` of operators, with those of products and attention times ``factor``."""
    if factor == 1.0:
        return seconds
    return {
        op: time * factor if isinstance(op, Gemm | GroupedGemm | Attention) else time for op, time in seconds.items()
    }
