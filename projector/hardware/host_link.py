"""Says how fast a device reads the memory of its host, and how fast and how large that memory is.

A user's cluster file states all three where it knows better (``host_link_gbs``, ``host_memory_gbs``,
``host_memory_gib``); the tables here are of the usual host of each architecture.
"""

from __future__ import annotations

from projector.errors import Unsupported
from projector.hardware.types import Cluster
from projector.parameter import parameter

# bytes/s per direction; what is not listed has PCIe 5.0
_LINK = parameter(
    {"volta": 15.8e9, "ampere": 31.5e9, "gfx90a": 31.5e9},
    unit="B/s",
    kind="datasheet",
    source="16 lanes of PCIe 3.0 and 4.0 after encoding",
)
_PCIE_5 = parameter(63e9, unit="B/s", kind="datasheet", source="16 lanes of PCIe 5.0 after encoding")
_C2C = parameter(
    225e9,
    unit="B/s",
    kind="datasheet",
    source="NVIDIA Grace Hopper and Grace Blackwell whitepapers: NVLink-C2C 900 GB/s both ways, shared by two GPUs of a "
    "GB200 or GB300 board",
)
_SHARE = parameter(
    0.87,
    kind="published",
    source="55 GB/s host to device of pinned memory on H100 PCIe 5.0 (NVIDIA nvbandwidth examples)",
)

# bytes/s of all memory channels of the usual host; what is not listed has that of Hopper
_MEMORY = parameter(
    {
        "volta": 153.6e9,
        "ampere": 409.6e9,
        "gfx90a": 204.8e9,
        "hopper": 614.4e9,
        "gfx942": 921.6e9,
        "blackwell": 716.8e9,
        "blackwell_ultra": 716.8e9,
        "gfx950": 1152e9,
    },
    unit="B/s",
    kind="datasheet",
    source="channels x MT/s x 8 bytes: DGX-1 (2 x 4 DDR4-2400), DGX A100 (2 x 8 DDR4-3200), Frontier blade (8 DDR4-3200), "
    "DGX H100 and H200 (2 x 8 DDR5-4800), MI300X platforms with EPYC 9004 (2 x 12 DDR5-4800), DGX B200 and B300 (2 x 8 "
    "DDR5-5600), MI355X platforms with EPYC 9005 (2 x 12 DDR5-6000)",
)
_GRACE = parameter(
    512e9, unit="B/s", kind="datasheet", source="LPDDR5X of one Grace CPU; two GPUs share it on GB200 and GB300 boards"
)
_COPIED = parameter(
    0.8,
    kind="published",
    source="share of the channels' rate that copies of all ranks reach together: STREAM on two-socket servers",
)
_OPTIMIZER = parameter(
    0.68,
    kind="published",
    source="CPU Adam of Megatron-Core on DGX H100, eight ranks of 1.9e9 parameters in 2.9 s beside its copies, 80 bytes of "
    "traffic each: share of the channels (NVIDIA-NeMo/Megatron-Bridge pull request 3062)",
)
# GiB of the usual host; what is not listed has that of Hopper
_CAPACITY = parameter(
    {"volta": 512.0, "gfx90a": 512.0, "hopper": 2048.0, "gfx950": 3072.0},
    unit="GiB",
    kind="datasheet",
    source="NVIDIA user guides: DGX-1 512 GB, DGX A100 80 GB, H100, B200 and B300 2 TB; Frontier node (OLCF) 512 GB; MI355X "
    "platforms with 24 DIMMs of 128 GB; MI300X ones have 1.5 to 3 TB",
)
_GRACE_CAPACITY = parameter(
    480.0,
    unit="GiB",
    kind="datasheet",
    source="LPDDR5X of one Grace CPU of GH200, GB200 and GB300; two GPUs share it on the latter two",
)
_UNIFIED = ("mi300a",)  # CPU and GPU on one package, one memory


def bandwidth(cluster: Cluster) -> float:
    """Returns the bytes/s of a copy from pinned host memory to one device of ``cluster``."""
    if cluster.host_link is not None:
        return cluster.host_link
    return _SHARE * (_C2C if cluster.host == "grace" else _LINK.get(cluster.gpu.arch, _PCIE_5))


def copies(cluster: Cluster, ranks: int) -> float:
    """Returns the bytes/s of host memory that each of the ``ranks`` of a host has when all of them copy at once."""
    return _COPIED * _memory_bandwidth(cluster) / max(1, ranks)


def optimizer_traffic(cluster: Cluster, ranks: int) -> float:
    """Returns the bytes/s of host-memory traffic that the optimizer of one of the ``ranks`` of a host sustains."""
    return _OPTIMIZER * _memory_bandwidth(cluster) / max(1, ranks)


def capacity(cluster: Cluster) -> float:
    """Returns the bytes of memory of one host."""
    if cluster.host_capacity is not None:
        return cluster.host_capacity
    if cluster.host == "grace":
        return _GRACE_CAPACITY * 2.0**30 * cluster.gpus_per_host / 2.0
    return _CAPACITY.get(cluster.gpu.arch, _CAPACITY["hopper"]) * 2.0**30


def separate(cluster: Cluster) -> None:
    """Raises :class:`Unsupported` where the host has no memory of its own to take anything off the device."""
    if (cluster.gpu.base or cluster.gpu.name) in _UNIFIED:
        raise Unsupported(f"offload to the host on {cluster.gpu.name}: CPU and GPU share one memory")


def _memory_bandwidth(cluster: Cluster) -> float:
    if cluster.host_memory is not None:
        return cluster.host_memory
    if cluster.host == "grace":
        return _GRACE * cluster.gpus_per_host / 2.0
    return _MEMORY.get(cluster.gpu.arch, _MEMORY["hopper"])
