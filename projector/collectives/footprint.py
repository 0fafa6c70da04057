"""What a running collective takes from the compute beside it: compute units for its channels, and memory bandwidth.

A library opens channels in proportion to the rate that the topology allows, and each holds a compute unit until the call
ends. A byte lands in a buffer of the library before it reaches its place, so that each byte on the wire costs the device
three to four accesses of its memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from projector.collectives.network import Cost, Network
from projector.hardware.types import Gpu
from projector.parameter import parameter

# Device-memory bytes for each byte on the wire.
_RING = parameter(
    3.0,
    unit="B/B",
    kind="derived",
    source="NCCL's protocols (src/device/prims_simple.h): what arrives is written to a buffer, read from it, and written to "
    "its place, from where rings forward it, or added to an operand that is read too",
)
_EXCHANGE = parameter(
    4.0, unit="B/B", kind="derived", source="as a ring, and DeepEP's channels: an exchange also reads what it sends"
)
_TRAFFIC = {"all_to_all": _EXCHANGE, "send_recv": _EXCHANGE}
_IN_SWITCH = parameter(
    2.0,
    unit="B/B",
    kind="derived",
    source="the switch reads the buffer of every rank once and writes it once: per byte of the message",
)


@dataclass(frozen=True, slots=True)
class Footprint:
    """``units``: compute units held while the call runs; ``traffic``: its device-memory bytes."""

    units: float
    traffic: float

    def unit_share(self, gpu: Gpu) -> float:
        """Share of the compute units that products beside the call go without (before tiles are counted anew)."""
        return min(1.0, self.units / gpu.compute_units)

    def bandwidth_share(self, gpu: Gpu, seconds: float) -> float:
        """Share of the memory bandwidth that kernels beside the call go without during its ``seconds``."""
        return min(1.0, self.traffic / (gpu.memory_bandwidth * seconds)) if seconds > 0 else 0.0


def of_collective(kind: str, nbytes: float, net: Network, winner: Cost) -> Footprint:
    """Footprint of ``winner``, one of the candidates of ``kind`` on a group."""
    algorithm = winner.algorithm.partition(".")[0]
    if algorithm in ("nvls", "nvls_tree", "collnet"):
        return Footprint(net.constants["units.in_switch"], _IN_SWITCH * nbytes)
    traffic = _TRAFFIC.get(kind, _RING) * _volume(kind, net) * nbytes
    return Footprint(net.constants["units.ring"] * _rate_share(net), traffic)


def of_tokens(nbytes: float, net: Network, units: int | None = None) -> Footprint:
    """Footprint of a dispatch or combine kernel; its ``units`` are a setting of the library."""
    return Footprint(units or net.constants["units.dispatch"], _EXCHANGE * nbytes)


def _volume(kind: str, net: Network) -> float:
    """Bytes that one rank sends for each byte of the message."""
    if kind in ("broadcast", "send_recv"):
        return 1.0
    return (2.0 if kind == "all_reduce" else 1.0) * (net.size - 1) / net.size


def _rate_share(net: Network) -> float:
    """Rate around the group's rings against that of a full node, which is what all channels are opened for."""
    full = net.node_rate * net.constants.share("link.intra")
    return max(1.0 / net.constants["units.ring"], min(1.0, net.ring_rate() / full))
