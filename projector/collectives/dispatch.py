"""Token dispatch and combine kernels (DeepEP, HybridEP): one kernel drives NVLink or xGMI and RDMA at once.

A token crosses to another node once, whatever the number of its experts there, and is spread inside that node over its
links (DeepEP README). The caller counts those bytes; this file prices the two legs, which run side by side. With two
nodes the node's links are the longer leg, with more the adapters: so the README's 43, 58 and 51 GB/s of logical bytes
on 2, 4 and 8 nodes of H800 come out.
"""

from __future__ import annotations

from projector.collectives.network import Network
from projector.size import most


def seconds(net: Network, inside: float, outside: float, units: float | None = None) -> float:
    """Returns the seconds of DeepEP for ``inside`` bytes that one rank puts on its node's links and ``outside`` bytes
    on its adapter. ``units``: compute units that copy over the links (None: as many as it takes)."""
    copied = inside / (units * net.constants.get("dispatch.unit_gbs", float("inf")) * 1e9) if units else 0.0
    return _latency(net, _level(net)) + most(copied, _legs(net, inside, outside))


def hybrid_seconds(net: Network, inside: float, outside: float, rows: float) -> float:
    """Returns the same for HybridEP, whose few units have the tensor memory accelerator copy ``rows``: for each row and rank
    of the node they look up whether it goes there, so short rows cost more than their bytes, more so with many ranks."""
    lookups = rows * net.local * net.constants["dispatch.lookup_ns"] * 1e-9
    return _latency(net, _level(net)) + _legs(net, inside, outside, "link.dispatch.hybrid") + lookups


def _level(net: Network) -> str:
    return "intra" if net.nodes == 1 else "inter"


def low_latency_seconds(net: Network, nbytes: float) -> float:
    """Returns the seconds of kernels that send every copy of ``nbytes`` straight to its rank, without a round of counts."""
    if net.nodes == 1:
        return _latency(net, "intra") + _legs(net, nbytes * (net.local - 1) / net.local, 0.0)
    return _latency(net, "intra") + _legs(net, 0.0, nbytes * (net.size - net.fewest) / net.size)


def _latency(net: Network, level: str) -> float:
    return (net.constants["collective.launch_us"] + net.constants[f"dispatch_us.{level}"]) * 1e-6


def _legs(net: Network, inside: float, outside: float, share: str = "link.dispatch.intra") -> float:
    links = inside / (net.intra * net.constants.share(share))
    adapter = outside / (net.adapter * net.constants.share("link.dispatch.inter")) if net.nodes > 1 else 0.0
    return most(links, adapter)
