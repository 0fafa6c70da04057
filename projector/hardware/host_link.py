"""How fast a device reads the memory of its host: PCIe, or NVLink-C2C where a Grace CPU is the host."""

from __future__ import annotations

from projector.hardware.types import Cluster

__all__ = ["bandwidth"]

# datasheet: bytes/s per direction of the 16 lanes of each generation (PCIe 3.0, 4.0, 5.0), 15.8, 31.5 and 63 GB/s after
# encoding; NVIDIA Grace Hopper and Grace Blackwell whitepapers: NVLink-C2C 900 GB/s both ways, shared by two GPUs of a
# GB200 or GB300 board
_LINK = {"volta": 15.8e9, "ampere": 31.5e9, "gfx90a": 31.5e9}
_PCIE_5 = 63e9
_C2C = 225e9
_SHARE = 0.87  # published: 55 GB/s host to device of pinned memory on H100 PCIe 5.0 (NVIDIA nvbandwidth examples)


def bandwidth(cluster: Cluster) -> float:
    """Bytes/s of a copy from pinned host memory to one device of ``cluster``."""
    grace = cluster.gpus_per_host < cluster.gpus_per_node
    return _SHARE * (_C2C if grace else _LINK.get(cluster.gpu.arch, _PCIE_5))
