"""Says how fast a device reads the memory of its host, and how fast and how large that memory is.

A user's cluster file states all three where it knows better (``host_link_gbs``, ``host_memory_gbs``,
``host_memory_gib``); ``host_link.yaml`` has those of the usual host of each architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from projector.errors import Unsupported
from projector.hardware.types import Cluster
from projector.io.files import read_yaml
from projector.parameter import parameter

_TABLE: Mapping[str, Mapping[str, Any]] = read_yaml(Path(__file__).with_suffix(".yaml"))
_LINK: Mapping[str, float] = parameter(**_TABLE["link"])
_MEMORY: Mapping[str, float] = parameter(**_TABLE["memory"])
_CAPACITY: Mapping[str, float] = parameter(**_TABLE["capacity"])
_PCIE_5: float = parameter(**_TABLE["pcie_5"])
_C2C: float = parameter(**_TABLE["c2c"])
_SHARE: float = parameter(**_TABLE["share"])
_GRACE: float = parameter(**_TABLE["grace"])
_COPIED: float = parameter(**_TABLE["copied"])
_OPTIMIZER: float = parameter(**_TABLE["optimizer"])
_GRACE_CAPACITY: float = parameter(**_TABLE["grace_capacity"])
_UNIFIED = ("mi300a",)  # CPU and GPU on one package, one memory


def bandwidth(cluster: Cluster) -> float:
    """Returns the bytes/s of a copy from pinned host memory to one device of ``cluster``."""
    if cluster.host_link is not None:
        return cluster.host_link
    return _SHARE * (_C2C if cluster.host == "grace" else _LINK.get(cluster.gpu.arch, _PCIE_5))


def copies(cluster: Cluster, ranks: int) -> float:
    """Returns the bytes/s of host memory that each of the ``ranks`` of a host has when all of them copy at once."""
    return _COPIED * _memory_bandwidth(cluster) / max(1, ranks)


def optimizer_traffic(cluster: Cluster, ranks: int) -> float:
    """Returns the bytes/s of host-memory traffic that the optimizer of one of the ``ranks`` of a host sustains."""
    return _OPTIMIZER * _memory_bandwidth(cluster) / max(1, ranks)


def capacity(cluster: Cluster) -> float:
    """Returns the bytes of memory of one host."""
    if cluster.host_capacity is not None:
        return cluster.host_capacity
    if cluster.host == "grace":
        return _GRACE_CAPACITY * 2.0**30 * cluster.gpus_per_host / 2.0
    return _CAPACITY.get(cluster.gpu.arch, _CAPACITY["hopper"]) * 2.0**30


def separate(cluster: Cluster) -> None:
    """Raises :class:`Unsupported` where the host has no memory of its own to take anything off the device."""
    if (cluster.gpu.base or cluster.gpu.name) in _UNIFIED:
        raise Unsupported(f"offload to the host on {cluster.gpu.name}: CPU and GPU share one memory")


def _memory_bandwidth(cluster: Cluster) -> float:
    if cluster.host_memory is not None:
        return cluster.host_memory
    if cluster.host == "grace":
        return _GRACE * cluster.gpus_per_host / 2.0
    return _MEMORY.get(cluster.gpu.arch, _MEMORY["hopper"])
