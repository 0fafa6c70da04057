"""Reduction in the switch: NVLS inside an NVLink domain, NVLS trees between domains, SHARP in the network.

Each rank pulls its 1/n of the sum from the switch, which reads that part of every rank, and pushes it back by
multicast: (1 + 1/n) of the buffer leaves and enters every port. The measured 8-, 7- and 6-GPU ratios follow it within
1 % (stas00/ml-engineering network/README.md: 273, 268 and 261 GB/s of algorithm bandwidth on H200). Beyond the eight
ranks on which shares of links were measured it is the bus bandwidth, 2(n-1)/n of the buffer a second, that stays the same,
as NCCL takes it to be (NVIDIA/nccl@5067397c2676 src/graph/tuning.cc, ``ratio`` of ``NCCL_ALGO_NVLS``).
"""

from __future__ import annotations

from collections.abc import Iterator

from projector.collectives.algorithms.tree import levels
from projector.collectives.network import Cost, Network

__all__ = ["all_reduce"]


def all_reduce(net: Network) -> Iterator[Cost]:
    """Yields NVLS in one domain; between domains each rank's share goes through a tree, or a switch, by its own adapter."""
    inside, us = _nvls(net), net.constants
    nvls = (us["collective.launch_us"] + us["nvls_us"]) * 1e-6
    if inside is not None and net.nodes == 1:
        yield Cost("nvls", nvls, inside, net.fill("simple"))
    elif inside is not None:
        # A chunk is reduced in the switch, crosses the network and is sent out again before its buffer takes another; the
        # wire's own latency hides behind the chunks in flight (NCCL_STEPS, 8).
        fill, latency = us["extra_us.inter.nvls"] * 1e-6, nvls + 2 * net.crossings(*levels(net), "nvls")
        # Two nodes hold one half of the buffer each and exchange the other halves (NVIDIA/nccl@5067397c2676
        # src/graph/tuning.cc, the case of two nodes of ``NCCL_ALGO_NVLS_TREE``)
        yield Cost("nvls_tree", latency, max(inside, (1.0 if net.nodes == 2 else 2.0) / net.rail_rate()), fill)
    if net.cluster.inter.in_switch_reduction and net.nodes > 1:
        # Every adapter sends its share once and receives the sum once, whatever the number of nodes.
        chain = 2.0 * (net.local - 1) / net.local / net.link_rate()
        latency = (us["collective.launch_us"] + us["collnet_us"]) * 1e-6 + net.crossings(2, 2 * (net.pods > 1), "ll")
        yield Cost("collnet", latency, max(inside or chain, 1.0 / net.rail_rate()), net.fill("simple"))


def _nvls(net: Network) -> float | None:
    """Returns the seconds per byte inside the domain; None where a node has no such switch or too few ranks for it."""
    if not net.cluster.intra.in_switch_reduction or net.fewest < 3:
        return None
    volume = max(1.0 + 1.0 / net.fewest, 9.0 / 14.0 * 2.0 * (net.fewest - 1) / net.fewest)  # both 9/8 for eight ranks
    return volume / (net.intra * net.constants.share("link.nvls"))
