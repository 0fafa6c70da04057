"""Lower bounds that no algorithm can beat: bytes that must cross a cut of the topology, over the raw rate of that cut."""

from __future__ import annotations

from projector.collectives.network import Network, network
from projector.hardware.types import Cluster, GroupShape


def bandwidth_bound(kind: str, nbytes: float, shape: GroupShape, cluster: Cluster) -> float:
    """Returns the seconds below which no collective of ``kind`` on ``nbytes`` can fall, whatever the algorithm."""
    if shape.size <= 1:
        return 0.0
    net = network(shape, cluster)
    return nbytes * max(_between(kind, net), _inside(kind, net))


def _between(kind: str, net: Network) -> float:
    """Returns the seconds per byte through the adapters of all nodes together, or of the emptiest one, if longer."""
    if net.nodes == 1:
        return 0.0
    inter = net.cluster.inter.bandwidth
    if kind == "send_recv":
        return 1.0 / net.adapter
    if kind == "all_to_all":
        return (net.size - net.fewest) / net.size / inter
    node = net.fewest * inter
    if kind == "broadcast":
        return 1.0 / node
    if kind in ("all_gather", "reduce_scatter"):
        return (net.size - net.fewest) / net.size / node
    if net.cluster.inter.in_switch_reduction:
        return 1.0 / node
    # every node must receive the sum once; together they receive 2(N-1) buffers
    return max(1.0 / node, 2.0 * (net.nodes - 1) / (net.size * inter))


def _inside(kind: str, net: Network) -> float:
    """Returns the seconds per byte over the links of one rank inside the fullest node."""
    if kind == "send_recv":
        return 1.0 / net.peer if net.nodes == 1 else 0.0
    if net.local == 1:
        return 0.0
    if kind == "all_to_all":
        return (net.local - 1) / net.size / net.intra
    if kind == "broadcast":
        return 1.0 / net.intra
    rounds = 2.0 if kind == "all_reduce" and not net.cluster.intra.in_switch_reduction else 1.0
    return rounds * (net.local - 1) / net.local / net.intra
