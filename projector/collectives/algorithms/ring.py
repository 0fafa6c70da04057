"""Ring algorithms: every rank passes chunks to its neighbour; bandwidth-optimal, latency linear in the group.

Steps and hop counts as in NCCL ``src/graph/tuning.cc``: an all-reduce takes 2(n-1) steps, of which 2(N-1) cross nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from projector.collectives.network import PROTOCOLS, Cost, Network

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce_scatter"]


def all_reduce(net: Network) -> Iterator[Cost]:
    """Reduce-scatter and all-gather around the ring: 2(n-1)/n of the buffer over each link."""
    return _passes(net, "all_reduce", 2, 2.0 * (net.size - 1) / net.size)


def all_gather(net: Network) -> Iterator[Cost]:
    """(n-1)/n of the output over each link."""
    return _passes(net, "all_gather", 1, (net.size - 1) / net.size)


def reduce_scatter(net: Network) -> Iterator[Cost]:
    """(n-1)/n of the input over each link."""
    return _passes(net, "reduce_scatter", 1, (net.size - 1) / net.size)


def broadcast(net: Network) -> Iterator[Cost]:
    """A pipelined chain: the whole message over each link, the latency of every hop once."""
    return _passes(net, "broadcast", 1, 1.0)


def _passes(net: Network, kind: str, rounds: int, volume: float) -> Iterator[Cost]:
    for protocol in PROTOCOLS:
        rate = net.ring_rate(kind, protocol)
        yield Cost(f"ring.{protocol}", _latency(net, rounds, protocol), volume / rate, net.fill(protocol))


def _latency(net: Network, rounds: int, protocol: str) -> float:
    between = net.crossings(rounds * (net.nodes - 1), rounds * (net.pods - 1), protocol)
    inside = rounds * (net.size - net.nodes) * net.hop("intra", protocol)
    return net.base("ring", protocol) + inside + between
