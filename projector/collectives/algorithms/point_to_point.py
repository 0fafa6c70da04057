"""One message from one rank to another, as between pipeline stages."""

from __future__ import annotations

from collections.abc import Iterator

from projector.collectives.network import Cost, Network

__all__ = ["send_recv"]


def send_recv(net: Network) -> Iterator[Cost]:
    """Yields one message over a link of the node where the whole group shares one, else over the sender's adapter."""
    level = "intra" if net.nodes == 1 else "inter" if net.pods == 1 else "outer"
    raw = net.peer if level == "intra" else net.adapter
    share = net.constants.share(f"link.send_recv.{'intra' if level == 'intra' else 'inter'}")
    for protocol in net.protocols:
        latency = net.base("ring", protocol) + net.hop(level, protocol)
        yield Cost(f"p2p.{protocol}", latency, 1.0 / (raw * share * net.payload(protocol)), net.fill(protocol))
