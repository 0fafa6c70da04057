"""Two-level all-to-all: data first moves inside the node to the rank on the right rail, then between nodes (PXN).

Messages to one remote node travel together, so the adapters see one message a node instead of one a rank; the node's
own links carry the forwarded bytes as well, still one message a peer. Both legs are pipelined (NCCL
``NCCL_PXN_DISABLE`` documentation).
"""

from __future__ import annotations

from collections.abc import Iterator

from projector.collectives.algorithms.direct import inside, outside, turns
from projector.collectives.network import Cost, Network

__all__ = ["all_to_all"]


def all_to_all(net: Network) -> Iterator[Cost]:
    """Only where a group spans nodes and several of its ranks share each of them."""
    if net.nodes == 1 or net.fewest == 1:
        return
    share = net.constants
    forwarded = (net.size - net.local) / net.size * (net.local - 1) / net.local
    links = inside(net, (net.local - 1) / net.size + forwarded)
    peers = (net.size - 1) * share["peer_us.intra"] + (net.nodes - 1) * share["peer_us.inter"]
    latency = net.base("ring", "simple") + peers * 1e-6 + 2 * net.hop("intra", "simple") + turns(net)
    yield Cost("pxn", latency, max(links, outside(net)), net.fill("simple"))
