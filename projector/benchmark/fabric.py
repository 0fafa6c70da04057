"""Fits the fabric of this host: the figures with which the collective models give measured times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from projector.benchmark.collectives import Swept
from projector.collectives.model import seconds_of
from projector.dataclass import dataclass
from projector.hardware import efficiency
from projector.hardware.types import Cluster, Efficiency, Fabric, Gpu, GroupShape
from projector.io.rows import grouped
from projector.parameter import Parameter

_BANDWIDTHS = np.geomspace(1e7, 2e12, 120)  # bytes/s: loopback sockets to NVLink
_LATENCIES = np.geomspace(1e-7, 5e-3, 60)  # seconds: peer writes to processes that wait for a core
_ROUNDS = 3
_SHARES = {"send_recv": "link.send_recv.intra", "all_to_all": "link.all_to_all.intra"}

Times = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Joined:
    """The fabric of ``ranks`` devices of one host. ``error``: median error of the models with these figures over the
    ``times`` timed; ``parameters``: the share of the bandwidth and the overhead of each kind of collective."""

    ranks: int
    bandwidth: float
    latency: float
    error: float
    times: int
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


def fitted(swept: Sequence[Swept], gpu: Gpu) -> Joined:
    """Returns the figures with the least mean error in the logarithm, each refined in turn: bandwidth and latency of
    all kinds together, then the rate of each. ``swept`` holds one time at least."""
    ranks = max(each.asked.size for each in swept)
    kinds = grouped((each.asked.kind, each) for each in swept)
    bandwidth, latency = 1e10, 1e-5
    for _ in range(_ROUNDS):
        bandwidth = min(_BANDWIDTHS, key=lambda b: _loss(kinds.values(), gpu, float(b), latency))
        latency = min(_LATENCIES, key=lambda s: _loss(kinds.values(), gpu, float(bandwidth), float(s)))
    parameters: dict[str, Parameter] = {}
    rates = {k: min(_BANDWIDTHS, key=lambda b: _loss([some], gpu, float(b), latency)) for k, some in kinds.items()}
    errors = []
    for kind, of_kind in kinds.items():
        times = _times(of_kind, gpu, float(rates[kind]), latency)
        how = f"median of {len(of_kind)} sizes timed here"
        parameters[f"overhead_us.{kind}"] = Parameter(_overhead(*times) * 1e6, "measured", f"beyond the wire, {how}")
        share = float(rates[kind] / max(rates.values()))
        parameters[_share_key(kind)] = Parameter(share, "measured", f"of the fastest kind's rate, {how}")
        errors.append(np.abs(np.expm1(_errors(*times))))
    error = float(np.median(np.concatenate(errors)))
    return Joined(ranks, float(max(rates.values())), float(latency), error, len(swept), parameters)


def _share_key(kind: str) -> str:
    """Returns the key of the constant by which the rate of ``kind`` differs from the fabric's."""
    return _SHARES.get(kind, f"link.intra.{kind}")


def _loss(kinds: Iterable[Sequence[Swept]], gpu: Gpu, bandwidth: float, latency: float) -> float:
    return float(np.abs(np.concatenate([_errors(*_times(swept, gpu, bandwidth, latency)) for swept in kinds])).mean())


def _errors(modelled: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Returns the logarithms of modelled over measured seconds (n,) of one kind."""
    logarithms: np.ndarray = np.log((modelled + _overhead(modelled, measured)) / measured)
    return logarithms


def _overhead(modelled: np.ndarray, measured: np.ndarray) -> float:
    """Returns the seconds that every size takes beyond latency and bandwidth."""
    return max(0.0, float(np.median(measured - modelled)))


def _times(swept: Sequence[Swept], gpu: Gpu, bandwidth: float, latency: float) -> Times:
    """Returns (modelled, measured) seconds (n,) of one kind."""
    kind, size = swept[0].asked.kind, swept[0].asked.size
    cluster = _cluster(gpu, size, bandwidth, latency)
    known = efficiency.of(gpu)
    trial = {_share_key(kind): Parameter(1.0, "derived", "trial")}
    full_rate = Efficiency(gpu=gpu.name, parameters={**known.parameters, **trial})
    nbytes = np.array([float(each.asked.bytes) for each in swept])
    modelled = seconds_of(kind, nbytes, GroupShape(size, size), cluster, full_rate)
    return modelled, np.array([each.time.median for each in swept])


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
