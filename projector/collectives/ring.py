"""Ring algorithms: every rank passes chunks to its neighbour; bandwidth-optimal, latency linear in the group.

Steps and hop counts as in NCCL ``src/graph/tuning.cc``: an all-reduce takes 2(n-1) steps, of which 2(N-1) cross nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from projector.collectives.network import PROTOCOLS, Cost, Network

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce_scatter"]


def all_reduce(net: Network) -> Iterator[Cost]:
    """Reduce-scatter and all-gather around the ring: 2(n-1)/n of the buffer over each link."""
    return _passes(net, "all_reduce", rounds=2)


def all_gather(net: Network) -> Iterator[Cost]:
    """(n-1)/n of the output over each link."""
    return _passes(net, "all_gather", rounds=1)


def reduce_scatter(net: Network) -> Iterator[Cost]:
    """(n-1)/n of the input over each link."""
    return _passes(net, "reduce_scatter", rounds=1)


def broadcast(net: Network) -> Iterator[Cost]:
    """A pipelined chain: the whole message over each link, the latency of every hop once."""
    for protocol in PROTOCOLS:
        yield Cost(
            f"ring.{protocol}", _latency(net, 1, protocol), 1.0 / (net.ring_rate("broadcast") * net.payload(protocol))
        )


def _passes(net: Network, kind: str, rounds: int) -> Iterator[Cost]:
    volume = rounds * (net.size - 1) / net.size
    for protocol in PROTOCOLS:
        rate = net.ring_rate(kind) * net.payload(protocol)
        yield Cost(f"ring.{protocol}", _latency(net, rounds, protocol), volume / rate)


def _latency(net: Network, rounds: int, protocol: str) -> float:
    between = rounds * (net.nodes - 1)
    inside = rounds * (net.size - 1) - between
    hops = inside * net.hop("intra", protocol) + between * net.hop("inter", protocol)
    return net.base("ring", protocol) + hops
