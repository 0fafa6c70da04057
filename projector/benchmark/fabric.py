"""What joins the devices of this host: the bandwidth and latency with which the collective models give measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from projector.benchmark.collectives import Swept
from projector.collectives.model import seconds_of
from projector.hardware import efficiency
from projector.hardware.types import Cluster, Fabric, Gpu, GroupShape

__all__ = ["Joined", "fitted"]

_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
_BANDWIDTHS = np.geomspace(1e7, 2e12, 60)  # bytes/s: loopback sockets to NVLink
_LATENCIES = np.geomspace(1e-7, 5e-3, 60)  # seconds: peer writes to processes that wait for a core
_ROUNDS = 3


@dataclass(frozen=True)
class Joined:
    """``ranks`` devices of one host. ``error``: median of the models with these figures over the ``times`` timed."""

    ranks: int
    bandwidth: float
    latency: float
    error: float
    times: int


def fitted(swept: Sequence[Swept], gpu: Gpu) -> Joined:
    """The figures with the least mean error in the logarithm, each refined in turn. ``swept`` holds one at least."""
    ranks = max(each.asked.size for each in swept)
    bandwidth, latency = 1e10, 1e-5
    for _ in range(_ROUNDS):
        bandwidth = min(_BANDWIDTHS, key=lambda b: _loss(swept, gpu, ranks, float(b), latency))
        latency = min(_LATENCIES, key=lambda s: _loss(swept, gpu, ranks, float(bandwidth), float(s)))
    errors = _errors(swept, gpu, ranks, float(bandwidth), float(latency))
    return Joined(ranks, float(bandwidth), float(latency), float(np.median(np.abs(np.expm1(errors)))), len(errors))


def _loss(swept: Sequence[Swept], gpu: Gpu, ranks: int, bandwidth: float, latency: float) -> float:
    return float(np.abs(_errors(swept, gpu, ranks, bandwidth, latency)).mean())


def _errors(swept: Sequence[Swept], gpu: Gpu, ranks: int, bandwidth: float, latency: float) -> np.ndarray:
    """Logarithms of modelled over measured seconds (n,)."""
    cluster, ours = _cluster(gpu, ranks, bandwidth, latency), efficiency.of(gpu)
    found = []
    for kind in _KINDS:
        some = [each for each in swept if each.asked.kind == kind]
        for size in dict.fromkeys(each.asked.size for each in some):
            same = [each for each in some if each.asked.size == size]
            nbytes = np.array([float(each.asked.bytes) for each in same])
            said = seconds_of(kind, nbytes, GroupShape(size, size), cluster, ours)
            found.append(np.log(said / np.array([each.time.median for each in same])))
    return np.concatenate(found)


def _cluster(gpu: Gpu, ranks: int, bandwidth: float, latency: float) -> Cluster:
    fabric = Fabric(name="here", topology="switch", size=ranks, bandwidth=bandwidth, latency=latency)
    return Cluster(
        name="here",
        gpu=gpu,
        gpus_per_node=ranks,
        gpus_per_host=ranks,
        intra=fabric,
        inter=replace(fabric, name="network", size=1 << 20),
    )
