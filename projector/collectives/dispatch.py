"""Token dispatch and combine kernels (DeepEP, HybridEP): one kernel drives NVLink or xGMI and RDMA at once.

A token crosses to another node once, whatever the number of its experts there, and is spread inside that node over its
links (DeepEP README). The caller counts those bytes; this file prices the two legs, which run side by side.
"""

from __future__ import annotations

from projector.collectives.network import Network

__all__ = ["seconds"]


def seconds(net: Network, inside: float, outside: float) -> float:
    """Seconds for ``inside`` bytes that one rank puts on its node's links and ``outside`` bytes on its adapter."""
    share = net.constants
    level = "intra" if net.nodes == 1 else "inter"
    latency = (share["collective.launch_us"] + share[f"dispatch_us.{level}"]) * 1e-6
    links = inside / (net.intra * share.share("link.dispatch.intra"))
    adapter = outside / (net.inter * share.share("link.dispatch.inter")) if net.nodes > 1 else 0.0
    return latency + max(links, adapter)
