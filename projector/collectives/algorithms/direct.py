"""Direct algorithms: every rank talks to every other at once.

On a full mesh of xGMI links RCCL runs them for small messages (MSCCL's all-pairs programs), with flags in the data
(LL); large messages go around rings that use all links. All-to-all is direct at every size.
"""

from __future__ import annotations

from collections.abc import Iterator

from projector.collectives.network import Cost, Network

__all__ = ["all_gather", "all_reduce", "all_to_all", "inside", "internode_latency", "one_shot", "outside"]
__all__ += ["reduce_scatter"]


def all_reduce(net: Network) -> Iterator[Cost]:
    """Yields one shot (every rank reads every whole buffer) and two shot (direct reduce-scatter, direct all-gather)."""
    if net.nodes > 1 or not net.mesh:
        return
    rate = net.ring_rate(protocol="ll")
    start, hop = net.base("ring", "ll"), net.hop("intra", "ll")
    yield Cost("one_shot.ll", start + hop, (net.size - 1) / rate)
    yield Cost("two_shot.ll", start + 2 * hop, 2.0 * (net.size - 1) / net.size / rate)


def all_gather(net: Network) -> Iterator[Cost]:
    """Yields a single step that carries (n-1)/n of the output into every rank, or of the input of a reduce-scatter out."""
    if net.nodes > 1 or not net.mesh:
        return
    latency = net.base("ring", "ll") + net.hop("intra", "ll")
    yield Cost("direct.ll", latency, (net.size - 1) / net.size / net.ring_rate(protocol="ll"))


reduce_scatter = all_gather


def all_to_all(net: Network) -> Iterator[Cost]:
    """Yields grouped sends and receives: between nodes a message to each remote rank, the node's own part at the same time.

    The rank that waits longest sits in the node with the fewest ranks of the group: most of its peers are remote.
    """
    peers = net.constants["peer_us.intra"] * (net.local - 1) + net.constants["peer_us.inter"] * (net.size - net.fewest)
    if net.nodes == 1:
        peers = net.constants["peer_us.intra"] * (net.size - 1)
    latency = net.base("ring", "simple") + peers * 1e-6 + net.hop("intra", "simple") + internode_latency(net)
    yield Cost("direct", latency, max(inside(net, (net.local - 1) / net.size), outside(net)), net.fill("simple"))


def one_shot(net: Network) -> Iterator[Cost]:
    """Yields a compiler's own exchange: one kernel copies row by row over peer mappings, without chunks or channels."""
    for cost in all_to_all(net):
        yield Cost("one_shot", cost.latency, cost.per_byte / net.constants.share("link.one_shot"))


def internode_latency(net: Network) -> float:
    """Returns the seconds of latency between nodes: one hop, and without switches the wire for each further node."""
    if net.nodes == 1:
        return 0.0
    between = net.cluster.inter
    more = 0.0 if between.topology == "switch" else (net.nodes - 2) * between.latency
    return net.crossings(1, min(1, net.pods - 1), "simple") + more


def inside(net: Network, volume: float) -> float:
    """Returns the seconds per byte when ``volume`` of each rank's buffer goes to node peers."""
    if volume <= 0.0:
        return 0.0
    rate = net.intra * net.constants.share("link.all_to_all.intra")
    if net.bridged:
        rate *= min(1.0, net.constants.get("bridge.all_to_all", 1.0))
    if net.mesh:
        rate *= 1.0 - net.constants.get("contention.mesh", 0.0) * net.saturation**2
    return volume / rate


def outside(net: Network) -> float:
    """Returns the seconds per byte of a rank's buffer through its adapter: the part that leaves the node, or the pod."""
    if net.nodes == 1:
        return 0.0
    share = net.constants.share("link.all_to_all.inter")
    share *= max(0.1, 1.0 - net.constants.get("contention.remote", 0.0) * (net.nodes - 1))
    leaves_node = (net.size - net.fewest) / net.size / (net.cluster.inter.bandwidth * share)
    leaves_pod = (net.pods - 1) / net.pods / (net.outer.bandwidth * share) if net.pods > 1 else 0.0
    return max(leaves_node, leaves_pod)
