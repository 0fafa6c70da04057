"""Devices, fabrics and clusters as values. SI units: seconds, bytes, FLOP/s, bytes/s (names carry a unit otherwise)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from projector.dataclass import dataclass
from projector.errors import Unsupported
from projector.hardware.efficiency_file import priors
from projector.parameter import Parameter


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One device as its data sheet describes it (MI250X: one GCD, since one GCD is one rank).

    ``peak``: dense FLOP/s by operand type (``bf16``, ``fp16``, ``fp8``, ``mxfp8``, ``nvfp4``, ``tf32``, ``fp32`` — the
    last for the matrix unit where there is one), at ``peak_clock_mhz``; what else a GPU can do follows from its ``arch``
    (:mod:`projector.hardware.architectures`). ``flops_per_clock``: matrix FLOP per clock and compute unit by type.
    ``memory_bytes``: physical; ``usable_memory_bytes``: what a process can get. ``efficiency_file``: a file of efficiency
    parameters that override those of its name (a device of the user's own). ``shown``: what a run on it did although no
    source knows it of the GPU.
    """

    name: str
    title: str
    vendor: str
    arch: str
    compute_units: int
    boost_clock_mhz: float
    peak_clock_mhz: float
    peak: Mapping[str, float]
    vector_flops: float
    exp_per_clock_per_cu: float
    memory_bytes: float
    usable_memory_bytes: float
    memory_bandwidth: float
    l2_bytes: float
    llc_bytes: float
    shared_memory_per_cu: float
    dies: int
    tdp_watts: float
    flops_per_clock: Mapping[str, float] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    efficiency_file: str = ""
    shown: tuple[str, ...] = ()

    def peak_of(self, dtype: str) -> float:
        """Dense peak of an operand type; a type the device lacks falls back on the next wider one it has.

        Raises :class:`Unsupported` where it has none of them.
        """
        for name in _WIDER.get(dtype, (dtype, "bf16")):
            if name in self.peak:
                return self.peak[name]
        raise Unsupported(f"{self.name} has no matrix rate for {dtype}")


_WIDER: dict[str, tuple[str, ...]] = {
    "bf16": ("bf16", "fp16"),
    "fp16": ("fp16", "bf16"),
    "fp8": ("fp8", "bf16"),
    "int8": ("int8", "fp8", "bf16", "fp16"),
    "mxfp8": ("mxfp8", "fp8", "bf16"),
    "fp4": ("fp4", "nvfp4", "mxfp4", "bf16"),
    "mxfp4": ("mxfp4", "fp4", "fp8", "bf16"),
    "nvfp4": ("nvfp4", "fp4", "fp8", "bf16"),
    "tf32": ("tf32", "fp32"),
    "fp32": ("fp32",),
}


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """One level of the network. ``bandwidth``: bytes/s per GPU and direction; ``latency``: seconds per message hop.

    ``topology``: ``switch`` (NVSwitch, fat tree), ``mesh`` (every pair of the ``size`` GPUs has its own link, so a group
    of g uses (g−1)/(size−1) of the bandwidth), ``ring`` or ``pcie``. ``size``: GPUs that this level joins.
    ``in_switch_reduction``: NVLS or SHARP. ``technology``: whose constants hold (``roce``, ``slingshot``, …), empty for
    those of the library. ``path``: of a network, between a GPU and its adapter (one of
    :data:`~projector.hardware.cluster_file.PATHS`).
    """

    name: str
    topology: str
    size: int
    bandwidth: float
    latency: float
    in_switch_reduction: bool = False
    nics_per_node: int | None = None
    technology: str = ""
    path: str = "pxb"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """GPUs of one type joined by an intra-node (or NVLink-domain) fabric and an inter-node one.

    ``gpus_per_node`` is the size of the fast domain that ranks fill first (72 for NVL72), ``gpus_per_host`` the GPUs of
    one operating system. ``inter`` joins ``inter.size`` GPUs, a pod; ``outer`` joins pods (None: no third level).
    ``host_link``: bytes/s per direction between host memory and one GPU; ``host_memory``: bytes/s of all memory channels
    of a host, ``host_capacity``: its bytes (None: those of the usual host of the GPU). ``processor``: of the host, ``x86``
    or ``grace`` (None: see ``host``).
    """

    name: str
    gpu: Gpu
    gpus_per_node: int
    gpus_per_host: int
    intra: Fabric
    inter: Fabric
    outer: Fabric | None = None
    processor: str | None = None
    host_link: float | None = None
    host_memory: float | None = None
    host_capacity: float | None = None
    overrides: Mapping[str, float] = field(default_factory=dict)
    sources: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        """The host's processor: as stated, else Grace where one NVLink domain spans several hosts."""
        return self.processor or ("grace" if self.gpus_per_host < self.gpus_per_node else "x86")


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A process group on the cluster: ``size`` ranks, ``per_node`` of them in each node that it touches.

    The last node holds what is left; ``counts`` states the ranks of every node where that is not so. ``pods``: how many
    pods of a network with a third level it touches (None: its nodes are neighbours).
    """

    size: int
    per_node: int
    counts: tuple[int, ...] | None = None
    pods: int | None = None

    @property
    def nodes(self) -> int:
        return len(self.counts) if self.counts else -(-self.size // self.per_node)

    @property
    def most(self) -> int:
        """Ranks in the fullest node."""
        return max(self.counts) if self.counts else min(self.per_node, self.size)

    @property
    def fewest(self) -> int:
        """Ranks in the emptiest node."""
        if self.counts:
            return min(self.counts)
        return self.size - (self.nodes - 1) * min(self.per_node, self.size)


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The few parameters that physics does not give, for one GPU (else its architecture, else its vendor).

    ``efficiency[name]`` is what ``parameters`` state, else the prior of every GPU; KeyError where neither has it.
    """

    gpu: str
    parameters: Mapping[str, Parameter]

    def __getitem__(self, name: str) -> float:
        found = self.parameters.get(name)
        return priors()[name].value if found is None else found.value

    def get(self, name: str, default: float) -> float:
        """What ``parameters`` state, else ``default``: for factors that change nothing where they are not stated."""
        found = self.parameters.get(name)
        return default if found is None else found.value
