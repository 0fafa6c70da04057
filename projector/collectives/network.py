"""The view that one process group has of a cluster: its ranks per node, and the raw rate and latency of each level."""

from __future__ import annotations

import math
from typing import NamedTuple

from projector.collectives.constants import Constants, constants
from projector.dataclass import dataclass
from projector.hardware.types import Cluster, Efficiency, Fabric, GroupShape
from projector.mechanism import mechanism

INFINITE = float("inf")
PROTOCOLS = ("ll", "ll128", "simple")
_BEFORE_HOPPER = ("volta", "ampere")


class Cost(NamedTuple):
    """Time of one algorithm and protocol for S bytes: latency + x + 2·sqrt(fill·x), x = ``per_byte``·S.

    A pipeline of k chunks through D hops that cost ``c`` each takes (k + D − 1)(c + x/k); the best k leaves
    x + (D − 1)c + 2·sqrt((D − 1)c·x) (Hockney's optimum). ``fill`` is that overhead of filling and draining a chunk;
    it makes the smooth shoulder between latency and bandwidth that measured collectives have.
    """

    algorithm: str
    latency: float
    per_byte: float
    fill: float = 0.0

    def seconds(self, nbytes: float) -> float:
        """Returns the seconds for ``nbytes`` > 0."""
        wire = self.per_byte * nbytes
        return self.latency + wire + 2.0 * math.sqrt(self.fill * wire)


@dataclass(frozen=True, slots=True)
class Network:
    """A group of ``size`` ranks over ``nodes`` nodes in ``pods`` pods.

    ``local``, ``fewest``: its ranks in the fullest and in the emptiest of these nodes. ``intra``: raw bytes/s of the links
    of one rank to its node peers of the group together (infinite where it has none); ``peer``: to one of them.
    ``saturation``: share of a mesh's links that the group uses; ``bridged``: a PCIe group that spans two switches;
    ``ll128``: the library runs that protocol here.
    """

    cluster: Cluster
    size: int
    local: int
    fewest: int
    nodes: int
    pods: int
    intra: float
    peer: float
    ll128: bool
    saturation: float
    bridged: bool
    constants: Constants

    @property
    def outer(self) -> Fabric:
        """Returns the fabric that joins pods: that of one pod where there are no others."""
        return self.cluster.outer or self.cluster.inter

    @property
    def mesh(self) -> bool:
        """Returns whether every pair of GPUs of a node has a link of its own."""
        return self.cluster.intra.topology == "mesh"

    def ring_rate(self, kind: str = "all_reduce", protocol: str = "simple") -> float:
        """Returns the bytes/s of data around rings through all ranks: the slower of links and adapters of a node.

        Each rank of a node brings its own adapter (rails), and the channels of the collective spread over them; all of
        a ring's traffic passes every node, so the node with the fewest ranks sets the rate between nodes.
        """
        return min(min(self.link_rate(kind), self.rail_rate(kind)) * self.payload(protocol), self._cap(protocol))

    def link_rate(self, kind: str = "all_reduce") -> float:
        """Returns the bytes/s of one rank's links inside the node around a ring; infinite for ranks without node peers."""
        share = self.constants.get(f"link.intra.{kind}", self.constants["link.intra"])
        bridge = min(1.0, self.constants.get("bridge.ring", 1.0)) if self.bridged else 1.0
        return self.intra * min(1.0, share) * bridge

    def rail_rate(self, kind: str = "all_reduce") -> float:
        """Returns the bytes/s between nodes of all the group's adapters in its emptiest node; infinite inside one node.

        A single rank of a node receives and sends through one adapter; several receive through one and send by another.
        Beyond a pod a cluster's file may state another share (``link.outer``).
        """
        if self.nodes == 1:
            return INFINITE
        share = min(1.0, self.constants.get(f"link.inter.{kind}", self.constants["link.inter"]))
        if self.pods > 1 and self.constants.states("link.outer"):
            return self.fewest * self.adapter * min(1.0, self.constants["link.outer"])
        alone = min(1.0, self.constants.get("link.inter.alone", share)) if self.fewest == 1 else share
        return self.fewest * self.adapter * alone

    @property
    def adapter(self) -> float:
        """Returns the raw bytes/s of one rank's adapter towards the farthest rank of the group."""
        inter = self.cluster.inter.bandwidth
        return inter if self.pods == 1 else min(inter, self.outer.bandwidth)

    def hop(self, level: str, protocol: str) -> float:
        """Returns the seconds of one hop in a node (``intra``), a pod (``inter``) or beyond (``outer``) under a protocol."""
        fabric = self.outer if level == "outer" else self.cluster.intra if level == "intra" else self.cluster.inter
        level = "intra" if level == "intra" else "inter"
        return fabric.latency + self.constants[f"extra_us.{level}.{protocol}"] * 1e-6

    def crossings(self, nodes: int, pods: int, protocol: str, extra: float = 0.0) -> float:
        """Returns the seconds of ``nodes`` hops between nodes, ``pods`` of them between pods, each ``extra`` longer."""
        in_pods = (nodes - pods) * (self.hop("inter", protocol) + extra)
        return in_pods + pods * (self.hop("outer", protocol) + extra)

    def base(self, algorithm: str, protocol: str) -> float:
        """Returns the seconds that a call costs before its first hop: launch, and set-up of the algorithm."""
        return (self.constants["collective.launch_us"] + self.constants[f"base_us.{algorithm}.{protocol}"]) * 1e-6

    def fill(self, protocol: str, level: str = "intra") -> float:
        """Returns the seconds to hand one chunk to the next rank: the protocol's own hop between two devices, or
        between two nodes (``level`` ``inter``) where every chunk passes all levels before the next may follow.

        Returns 0 with LL: a flag travels with every four bytes, so nobody waits for the end of a chunk.
        """
        return 0.0 if protocol == "ll" else self.hop(level, protocol)

    def payload(self, protocol: str) -> float:
        """Returns the share of the link rate left for data under a protocol; less where it is slower between nodes."""
        if protocol == "simple":
            return 1.0
        inside = self.constants.share(f"rate.{protocol}")
        return inside if self.nodes == 1 else min(inside, self.constants.get(f"rate.inter.{protocol}", inside))

    @property
    def protocols(self) -> tuple[str, ...]:
        """Returns the protocols that the library runs here."""
        return PROTOCOLS if self.ll128 else tuple(protocol for protocol in PROTOCOLS if protocol != "ll128")

    def _cap(self, protocol: str) -> float:
        """Returns the bytes/s that the channels of a ring can carry at most under a protocol."""
        limit = self.constants.get(f"cap_gbs.{protocol}.{min(self.nodes, 3)}", INFINITE) * 1e9
        return min(limit, self.channel_rate("ring"))

    def channel_rate(self, algorithm: str) -> float:
        """Returns the bytes/s of all channels that the library may open, by algorithm (``tree.2``: on two nodes)."""
        channel = self.constants.get(f"channel_gbs.{algorithm}", INFINITE)
        return self.constants.get("channels.max", INFINITE) * channel * 1e9


def network(shape: GroupShape, cluster: Cluster, efficiency: Efficiency | None = None) -> Network:
    """Returns the view that a group of ``shape`` has of ``cluster``."""
    local, nodes = shape.most, shape.nodes
    intra, peer = _inside(cluster.intra, local)
    return Network(
        cluster=cluster,
        size=shape.size,
        local=local,
        fewest=shape.fewest,
        nodes=nodes,
        pods=_pods(shape, cluster),
        intra=intra,
        peer=peer,
        ll128=_ll128(shape, cluster),
        saturation=(local - 1) / max(1, cluster.intra.size - 1),
        bridged=cluster.intra.topology == "pcie" and local > cluster.intra.size / 2,
        constants=constants(cluster, efficiency),
    )


@mechanism(off=False)
def _ll128(shape: GroupShape, cluster: Cluster) -> bool:
    """Returns whether the library runs LL128 here; RCCL always does. NCCL needs its lines of 128 bytes to arrive whole: over
    NVLink in a node, to adapters under a PCIe switch, from Hopper on over C2C to the processor, never through its PCIe root.

    Source: NVIDIA/nccl@5067397c2676 src/graph/tuning.cc, ``ncclTopoTuneModel`` (``typeIntra``, ``typeInter``); sockets
    pass through the processor (src/graph/paths.cc, no GPU Direct RDMA).
    """
    if cluster.gpu.vendor != "nvidia":
        return True
    path = "phb" if cluster.inter.technology == "tcp" else cluster.inter.path
    near = ("pix", "pxb") if cluster.gpu.arch in _BEFORE_HOPPER else ("pix", "pxb", "c2c")
    return (shape.most == 1 or cluster.intra.topology != "pcie") and (shape.nodes == 1 or path in near)


def _pods(shape: GroupShape, cluster: Cluster) -> int:
    """Returns the pods that the group touches; where nobody counted them, its nodes are taken to be neighbours."""
    if cluster.outer is None:
        return 1
    if shape.pods is not None:
        return shape.pods
    return min(shape.nodes, -(-shape.nodes * cluster.gpus_per_node // cluster.inter.size))


def _inside(fabric: Fabric, local: int) -> tuple[float, float]:
    """Returns the raw rate of one rank towards its ``local - 1`` node peers, and towards one of them."""
    if local <= 1:
        return INFINITE, fabric.bandwidth / (fabric.size - 1 if fabric.topology == "mesh" and fabric.size > 1 else 1)
    if fabric.topology == "mesh":
        link = fabric.bandwidth / max(1, fabric.size - 1)
        return link * (local - 1), link
    return fabric.bandwidth, fabric.bandwidth
