"""Direct algorithms: every rank talks to every other at once.

On a full mesh of xGMI links RCCL runs them for small messages (MSCCL's all-pairs programs), with flags in the data
(LL); large messages go around rings that use all links. All-to-all is direct at every size.
"""

from __future__ import annotations

from collections.abc import Iterator

from projector.collectives.network import Cost, Network

__all__ = ["all_gather", "all_reduce", "all_to_all", "reduce_scatter"]


def all_reduce(net: Network) -> Iterator[Cost]:
    """One shot (every rank reads every whole buffer) and two shot (direct reduce-scatter, direct all-gather)."""
    if net.nodes > 1 or not net.mesh:
        return
    rate = net.ring_rate() * net.payload("ll")
    start, hop = net.base("ring", "ll"), net.hop("intra", "ll")
    yield Cost("one_shot.ll", start + hop, (net.size - 1) / rate)
    yield Cost("two_shot.ll", start + 2 * hop, 2.0 * (net.size - 1) / net.size / rate)


def all_gather(net: Network) -> Iterator[Cost]:
    """One step, (n-1)/n of the output into every rank."""
    return _one_step(net)


def reduce_scatter(net: Network) -> Iterator[Cost]:
    """One step, (n-1)/n of the input out of every rank."""
    return _one_step(net)


def all_to_all(net: Network) -> Iterator[Cost]:
    """Grouped sends and receives. Between nodes a message to each remote rank; the node's own part goes beside it."""
    share = net.constants
    peers = (net.local - 1) * share["peer_us.intra"] + (net.size - net.local) * share["peer_us.inter"]
    latency = net.base("ring", "simple") + peers * 1e-6 + net.hop("intra", "simple")
    if net.nodes > 1:
        latency += net.hop("inter", "simple")
    yield Cost("direct", latency, max(all_to_all_inside(net, (net.local - 1) / net.size), _outside(net)))


def all_to_all_inside(net: Network, volume: float) -> float:
    """Seconds per byte when ``volume`` of each rank's buffer goes to node peers."""
    if volume <= 0.0:
        return 0.0
    rate = net.intra * net.constants.share("link.all_to_all.intra")
    if net.bridged:
        rate *= min(1.0, net.constants.get("bridge.all_to_all", 1.0))
    if net.mesh:
        rate *= 1.0 - net.constants.get("contention.mesh", 0.0) * net.saturation**2
    return volume / rate


def all_to_all_rail(net: Network) -> float:
    """Bytes/s that one rank sends to other nodes through its adapter."""
    spread = 1.0 - net.constants.get("contention.remote", 0.0) * (net.nodes - 1)
    return net.inter * net.constants.share("link.all_to_all.inter") * max(0.1, spread)


def _outside(net: Network) -> float:
    if net.nodes == 1:
        return 0.0
    return (net.size - net.local) / net.size / all_to_all_rail(net)


def _one_step(net: Network) -> Iterator[Cost]:
    if net.nodes > 1 or not net.mesh:
        return
    rate = net.ring_rate() * net.payload("ll")
    latency = net.base("ring", "ll") + net.hop("intra", "ll")
    yield Cost("direct.ll", latency, (net.size - 1) / net.size / rate)
