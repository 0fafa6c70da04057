"""Reduction in the switch: NVLS inside an NVLink domain, NVLS trees between domains.

Each rank pulls its 1/n of the sum from the switch, which reads that part of every rank, and pushes it back by
multicast: (1 + 1/n) of the buffer leaves and enters every port. The measured 8-, 7- and 6-GPU ratios follow it within
1 % (stas00/ml-engineering network/README.md: 273, 268 and 261 GB/s of algorithm bandwidth on H200).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from projector.collectives.network import Cost, Network

__all__ = ["all_reduce"]


def all_reduce(net: Network) -> Iterator[Cost]:
    """NVLS in one domain; between domains each rank's share then goes through a tree over its own adapter."""
    if not net.in_switch_reduction or net.local < 3:
        return
    inside = (1.0 + 1.0 / net.local) / (net.intra * net.constants.share("link.nvls"))
    latency = (net.constants["collective.launch_us"] + net.constants["nvls_us"]) * 1e-6
    if net.nodes == 1:
        yield Cost("nvls", latency, inside)
        return
    depth = math.ceil(math.log2(net.nodes))
    latency += 2 * depth * net.hop("inter", "simple")
    yield Cost("nvls_tree", latency, max(inside, 2.0 / net.rail_rate()))
