"""The systems of a sweep: names of the catalogue, files of the user, and what of them is larger or smaller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from projector.errors import InputError, Problem
from projector.hardware import catalogue, own
from projector.hardware.types import Cluster, Gpu

__all__ = ["SCALES", "scaled", "system"]


@lru_cache(maxsize=64)
def system(name: str) -> Cluster:
    """A cluster or GPU of the catalogue, or a YAML file of either. Raises :class:`InputError`."""
    if catalogue.is_path(name):
        return catalogue.cluster(name) if own.is_cluster(name) else own.around(name).cluster
    if catalogue.knows_cluster(name):
        return catalogue.cluster(name)
    found = catalogue.find_gpu(name)
    if found is None:
        raise InputError(
            [Problem("", "system", name, "a GPU or cluster of the catalogue (projector gpus), or a YAML file")]
        )
    return catalogue.default_cluster(found)


def _flops(gpu: Gpu, factor: float) -> Gpu:
    return replace(
        gpu,
        peak={name: factor * value for name, value in gpu.peak.items()},
        flops_per_clock={name: factor * value for name, value in gpu.flops_per_clock.items()},
    )


#: Of a cluster what may be scaled, by its word.
SCALES: Mapping[str, Callable[[Cluster, float], Cluster]] = MappingProxyType(
    {
        "flops": lambda c, x: replace(c, gpu=_flops(c.gpu, x)),
        "memory_bandwidth": lambda c, x: replace(c, gpu=replace(c.gpu, memory_bandwidth=x * c.gpu.memory_bandwidth)),
        "memory_capacity": lambda c, x: replace(
            c, gpu=replace(c.gpu, usable_memory_bytes=x * c.gpu.usable_memory_bytes)
        ),
        "intra_bandwidth": lambda c, x: replace(c, intra=replace(c.intra, bandwidth=x * c.intra.bandwidth)),
        "inter_bandwidth": lambda c, x: replace(c, inter=replace(c.inter, bandwidth=x * c.inter.bandwidth)),
    }
)


@lru_cache(maxsize=4096)
def scaled(name: str, factors: tuple[tuple[str, Any], ...]) -> Cluster:
    """``system(name)`` with factors of :data:`SCALES`; one object for one answer, so that what is remembered of it stays."""
    cluster = system(name)
    for word, factor in factors:
        if factor != 1:
            cluster = SCALES[word](cluster, float(factor))
    return cluster
