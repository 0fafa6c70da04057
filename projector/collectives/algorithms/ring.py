"""Ring algorithms: every rank passes chunks to its neighbour; bandwidth-optimal, latency linear in the group.

Steps and hops as in NVIDIA/nccl@5067397c2676 src/graph/tuning.cc, ``ncclTopoInitTunerConstants`` and its model: an
all-reduce takes 2(n-1) steps, of which 2(N-1) cross nodes; between nodes each step costs a network call's overhead at
least; with one rank in a node nothing hides a hop between nodes, which then costs what a tree's does.
"""

from __future__ import annotations

from collections.abc import Iterator

from projector.collectives.network import Cost, Network
from projector.parameter import parameter

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce_scatter"]

_CALLS_SIMPLE = parameter(
    3.0, kind="published", source="NVIDIA/nccl@5067397c2676 src/graph/tuning.cc: network calls of a step under Simple"
)


def all_reduce(net: Network) -> Iterator[Cost]:
    """Yields reduce-scatter and all-gather around the ring: 2(n-1)/n of the buffer over each link."""
    return _passes(net, "all_reduce", 2, 2.0 * (net.size - 1) / net.size)


def all_gather(net: Network) -> Iterator[Cost]:
    """Yields one pass around the ring: (n-1)/n of the output over each link."""
    return _passes(net, "all_gather", 1, (net.size - 1) / net.size)


def reduce_scatter(net: Network) -> Iterator[Cost]:
    """Yields one pass around the ring: (n-1)/n of the input over each link."""
    return _passes(net, "reduce_scatter", 1, (net.size - 1) / net.size)


def broadcast(net: Network) -> Iterator[Cost]:
    """Yields a pipelined chain: the whole message over each link and the latency of every hop once, that of the network
    between nodes: the wait for whole chunks that NCCL assumes where rings differ from node to node (``sameChannels`` 0)."""
    return _passes(net, "broadcast", 1, 1.0)


def _passes(net: Network, kind: str, rounds: int, volume: float) -> Iterator[Cost]:
    for protocol in net.protocols:
        rate = net.ring_rate(kind, protocol)
        yield Cost(f"ring.{protocol}", _latency(net, kind, rounds, protocol), volume / rate, net.fill(protocol))


def _latency(net: Network, kind: str, rounds: int, protocol: str) -> float:
    base, inside = net.base("ring", protocol), net.hop("intra", protocol)
    if net.nodes == 1:
        return base + rounds * (net.size - 1) * inside
    exposed = net.constants[f"alone_us.{protocol}"] * 1e-6 if net.local == 1 else 0.0
    between = net.crossings(rounds * (net.nodes - 1), rounds * (net.pods - 1), protocol, extra=exposed)
    calls = net.constants["net_call_us"] * 1e-6 * (_CALLS_SIMPLE if protocol == "simple" else 1.0)
    step = max(inside, calls)
    if kind == "broadcast":
        step += net.constants.share("broadcast.far") * max(0.0, net.hop("inter", protocol) - step)
    return base + between + rounds * (net.size - net.nodes) * step
