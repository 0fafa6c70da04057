"""What one process group sees of a cluster: its ranks per node, and the raw rate and latency of each level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from projector.collectives.constants import Constants, constants
from projector.hardware.types import Cluster, Efficiency, Fabric, GroupShape

__all__ = ["Cost", "Network", "network"]

INFINITE = float("inf")
PROTOCOLS = ("ll", "ll128", "simple")


class Cost(NamedTuple):
    """Time of one algorithm and protocol: ``latency`` seconds plus ``per_byte`` seconds for each byte."""

    algorithm: str
    latency: float
    per_byte: float


@dataclass(frozen=True, slots=True)
class Network:
    """A group of ``size`` ranks, ``local`` of them in each of ``nodes`` nodes.

    ``intra``: raw bytes/s that one rank can send to all its node peers of the group together; ``peer``: to one of them;
    ``inter``: raw bytes/s of one rank's share of the adapters. ``intra`` is infinite where nobody shares a node.
    ``saturation``: share of a mesh's links that the group uses; ``bridged``: a PCIe group that spans two switches.
    """

    size: int
    local: int
    nodes: int
    intra: float
    peer: float
    inter: float
    intra_latency: float
    inter_latency: float
    in_switch_reduction: bool
    mesh: bool
    saturation: float
    bridged: bool
    constants: Constants

    def ring_rate(self, kind: str = "all_reduce") -> float:
        """Bytes/s around rings through all ranks: the slower of the node's links and the adapters of its ranks.

        Each of the ``local`` ranks of a node brings its own adapter (rails), and the channels of the collective spread
        over them, so that the cut between nodes carries ``local`` times the rate of one.
        """
        share = self.constants.get(f"link.intra.{kind}", self.constants["link.intra"])
        inside = self.intra * min(1.0, share)
        if self.bridged:
            inside *= min(1.0, self.constants.get("bridge.ring", 1.0))
        return min(inside, self.rail_rate())

    def rail_rate(self) -> float:
        """Bytes/s between nodes of all adapters of the group in a node; infinite inside one node."""
        return INFINITE if self.nodes == 1 else self.local * self.inter * self.constants.share("link.inter")

    def hop(self, level: str, protocol: str) -> float:
        """Seconds of one hop inside a node (``intra``) or between nodes (``inter``) under a protocol."""
        base = self.intra_latency if level == "intra" else self.inter_latency
        return base * self.constants[f"hop.{level}.{protocol}"]

    def base(self, algorithm: str, protocol: str) -> float:
        """Seconds that a call costs before its first hop: launch, and set-up of the algorithm."""
        return (self.constants["collective.launch_us"] + self.constants[f"base_us.{algorithm}.{protocol}"]) * 1e-6

    def payload(self, protocol: str) -> float:
        """Share of the link rate left for data under a protocol; less where it is slower between nodes."""
        if protocol == "simple":
            return 1.0
        inside = self.constants.share(f"rate.{protocol}")
        return inside if self.nodes == 1 else min(inside, self.constants.get(f"rate.inter.{protocol}", inside))


def network(shape: GroupShape, cluster: Cluster, efficiency: Efficiency | None = None) -> Network:
    """The view that a group of ``shape`` has of ``cluster``."""
    local = min(shape.per_node, shape.size)
    intra, peer = _inside(cluster.intra, local)
    return Network(
        size=shape.size,
        local=local,
        nodes=shape.nodes,
        intra=intra,
        peer=peer,
        inter=cluster.inter.bandwidth,
        intra_latency=cluster.intra.latency,
        inter_latency=cluster.inter.latency,
        in_switch_reduction=cluster.intra.in_switch_reduction,
        mesh=cluster.intra.topology == "mesh",
        saturation=(local - 1) / max(1, cluster.intra.size - 1),
        bridged=cluster.intra.topology == "pcie" and local > cluster.intra.size / 2,
        constants=constants(cluster, efficiency),
    )


def _inside(fabric: Fabric, local: int) -> tuple[float, float]:
    """Raw rate of one rank towards its ``local - 1`` node peers, and towards one of them."""
    if local <= 1:
        return INFINITE, fabric.bandwidth / (fabric.size - 1 if fabric.topology == "mesh" and fabric.size > 1 else 1)
    if fabric.topology == "mesh":
        link = fabric.bandwidth / max(1, fabric.size - 1)
        return link * (local - 1), link
    return fabric.bandwidth, fabric.bandwidth
