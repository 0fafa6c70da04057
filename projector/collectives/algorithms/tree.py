"""Tree algorithms: latency logarithmic in the number of nodes.

Double binary trees for all-reduce (Sanders, Speck and Träff 2009; NCCL ``src/graph/tuning.cc``): each tree carries half
of the buffer, up and down; inside a host the ranks form a chain, and hosts of one NVLink domain are levels of the tree.
PAT (parallel aggregated trees) for all-gather and reduce-scatter of groups with one rank in a node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from projector.collectives.network import Cost, Network
from projector.parameter import parameter

__all__ = ["all_gather", "all_reduce", "levels", "reduce_scatter"]

_PAT_US = parameter(2.8, unit="us", kind="published", source="NCCL src/graph/tuning.cc (2026-06): PAT, per rank")
_PAT_OVERLAP = parameter(
    3.5, kind="published", source="NCCL src/graph/tuning.cc (2026-06): PAT, times that a network hop is overlapped"
)


def all_reduce(net: Network) -> Iterator[Cost]:
    """Yields passes up and down two complementary trees: the buffer crosses each cut twice. Only between hosts."""
    host = net.cluster.gpus_per_host
    hosts = -(-net.local // host)
    if net.nodes * hosts == 1:
        return
    channels = net.channel_rate(f"tree.{min(net.nodes, 3)}")
    for protocol in net.protocols:
        inside = (min(net.local, host) - 1 + math.ceil(math.log2(hosts))) * net.hop("intra", protocol)
        between = net.crossings(*levels(net), protocol, extra=net.constants[f"tree_us.{protocol}"] * 1e-6)
        rate = min(net.ring_rate(protocol=protocol), channels) * net.constants.share("rate.tree")
        fill = net.fill(protocol, "inter" if net.nodes > 1 else "intra")
        yield Cost(f"tree.{protocol}", net.base("tree", protocol) + 2 * (inside + between), 2.0 / rate, fill)


def all_gather(net: Network) -> Iterator[Cost]:
    """Yields PAT: log2(nodes) steps with aggregated messages. A reduce-scatter runs it backwards."""
    if net.local > 1 or net.nodes < 2:
        return
    steps = net.crossings(*levels(net), "simple") / _PAT_OVERLAP + _PAT_US * 1e-6 * net.size
    volume = (net.size - 1) / net.size
    rate = net.ring_rate() * net.constants.share("rate.pat")
    yield Cost("pat.simple", net.base("ring", "simple") + steps, volume / rate, net.fill("simple"))


reduce_scatter = all_gather


def levels(net: Network) -> tuple[int, int]:
    """Returns the levels of a binary tree over the nodes, and how many of them lie between pods."""
    return math.ceil(math.log2(net.nodes)), math.ceil(math.log2(net.pods))
