"""Two-level all-to-all: data first moves inside the node to the rank on the right rail, then between nodes (PXN).

Messages to one remote node travel together, so the adapters see one message a node instead of one a rank; the node's
own links carry the forwarded bytes as well. Both legs are pipelined (NCCL ``NCCL_PXN_DISABLE`` documentation).
"""

from __future__ import annotations

from collections.abc import Iterator

from projector.collectives.direct import all_to_all_inside, all_to_all_rail
from projector.collectives.network import Cost, Network

__all__ = ["all_to_all"]


def all_to_all(net: Network) -> Iterator[Cost]:
    """Only where a group spans nodes and several of its ranks share one."""
    if net.nodes == 1 or net.local == 1:
        return
    share = net.constants
    remote = (net.size - net.local) / net.size
    forwarded = remote * (net.local - 1) / net.local
    inside = all_to_all_inside(net, (net.local - 1) / net.size + forwarded)
    outside = remote / all_to_all_rail(net)
    peers = (net.local - 1) * share["peer_us.intra"] + (net.nodes - 1) * share["peer_us.inter"]
    hops = 2 * net.hop("intra", "simple") + net.hop("inter", "simple")
    yield Cost("pxn", net.base("ring", "simple") + hops + peers * 1e-6, max(inside, outside))
