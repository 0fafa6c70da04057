"""Makes a cluster of which one thing is larger or smaller: what would a machine do that does not exist?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from projector.hardware.types import Cluster, Gpu
from projector.parameter import parameter

BETTER = parameter(1.1, kind="assumed", source="a tenth more of a resource: convention of a sensitivity")


def with_faster_units(gpu: Gpu, factor: float) -> Gpu:
    """Returns ``gpu`` whose matrix, vector and exponential units are ``factor`` times as fast."""
    return replace(
        gpu,
        peak={name: factor * value for name, value in gpu.peak.items()},
        flops_per_clock={name: factor * value for name, value in gpu.flops_per_clock.items()},
        vector_flops=factor * gpu.vector_flops,
        exp_per_clock_per_cu=factor * gpu.exp_per_clock_per_cu,
    )


#: What may be scaled of a cluster, by its word. ``memory_capacity``: the memory that a process can get.
SCALES: Mapping[str, Callable[[Cluster, float], Cluster]] = MappingProxyType(
    {
        "flops": lambda c, x: replace(c, gpu=with_faster_units(c.gpu, x)),
        "memory_bandwidth": lambda c, x: replace(c, gpu=replace(c.gpu, memory_bandwidth=x * c.gpu.memory_bandwidth)),
        "memory_capacity": lambda c, x: replace(
            c, gpu=replace(c.gpu, usable_memory_bytes=x * c.gpu.usable_memory_bytes)
        ),
        "intra_bandwidth": lambda c, x: replace(c, intra=replace(c.intra, bandwidth=x * c.intra.bandwidth)),
        "inter_bandwidth": lambda c, x: replace(c, inter=replace(c.inter, bandwidth=x * c.inter.bandwidth)),
    }
)
