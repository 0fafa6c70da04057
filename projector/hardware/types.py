"""Describes devices, fabrics and clusters as values. SI units: seconds, bytes, FLOP/s, bytes/s (names carry others).

A field says itself how files of hardware state it: readers, writers and checks are made from that
(:class:`projector.hardware.yaml_file.Reader`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from projector.dataclass import dataclass
from projector.errors import Unsupported
from projector.hardware.efficiency_file import priors
from projector.parameter import Parameter

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "mxfp4", "nvfp4", "fp4", "int8")
TOPOLOGIES = ("switch", "mesh", "ring", "pcie")
# Networks between nodes with constants of their own (collectives/constants.yaml); InfiniBand has those of the library.
TECHNOLOGIES = ("infiniband", "roce", "slingshot", "efa", "ainic", "tcpx", "tcpxo", "tcp")
# Between a GPU and its adapter, as `nvidia-smi topo -m` names it (c2c: over the link to a Grace processor), near to far.
PATHS = ("pix", "pxb", "c2c", "phb", "node", "sys")
# An inter-node fabric joins as many GPUs as a job asks for.
ANY_SIZE = 1 << 20
_STATED = "stated"


@dataclass(frozen=True, slots=True)
class Stated:
    """How a file states a field. ``key``: its name there; ``unit``: the size of the file's unit in ours; ``least`` and
    ``most`` bound the file's number; ``words`` are all that it may hold; ``needed``: a file states it although an object
    made in Python may leave it out."""

    key: str
    unit: float
    least: float
    most: float
    words: tuple[str, ...]
    needed: bool


def stated(
    least: float = 0.0, most: float = 0.0, key: str = "", unit: float = 1.0, *, words: tuple[str, ...] = (),
    needed: bool = False, **default: Any,
) -> Any:  # fmt: skip
    """Returns a field that files state. ``default``: ``default`` or ``default_factory`` of one that may be left out."""
    return field(metadata={_STATED: Stated(key, unit, least, most, words, needed)}, **default)


def stated_of(kind: Any) -> Mapping[str, Stated]:
    """Returns the fields of a dataclass that files state, by name."""
    return {each.name: each.metadata[_STATED] for each in fields(kind) if _STATED in each.metadata}


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One device as its data sheet describes it (MI250X: one GCD, since one GCD is one rank).

    ``peak``: dense FLOP/s by operand type (``bf16``, ``fp16``, ``fp8``, ``mxfp8``, ``nvfp4``, ``tf32``, ``fp32`` — the
    last for the matrix unit where there is one), at ``peak_clock_mhz``; what else a GPU can do follows from its
    ``arch`` (:mod:`projector.hardware.architectures`). ``flops_per_clock``: matrix FLOP per clock and compute unit by
    type. ``memory_bytes``: physical; ``usable_memory_bytes``: what a process can get. ``efficiency_file``: a file of
    efficiency parameters that override those of its name (a device of the user's own). ``base``: the GPU of the
    catalogue from which a file of the user's takes all that it does not state, its efficiency parameters and hosts among
    it. ``shown``: abilities that a measured run on it shows and no source states.
    """

    name: str = stated()
    title: str = stated()
    vendor: str = stated(words=("nvidia", "amd", "cpu"))
    arch: str = stated()
    compute_units: int = stated(1, 4096)
    boost_clock_mhz: float = stated(100, 10_000)
    peak_clock_mhz: float = stated(100, 10_000)
    peak: Mapping[str, float] = stated(1e-3, 1e6, "peak_tflops", 1e12)
    vector_flops: float = stated(1e-3, 1e5, "vector_tflops", 1e12)
    exp_per_clock_per_cu: float = stated(0.1, 1024)
    memory_bytes: float = stated(1, 4096, "memory_gib", 2.0**30)
    usable_memory_bytes: float = stated(0.5, 4096, "usable_memory_gib", 2.0**30)
    memory_bandwidth: float = stated(1e-3, 1000, "memory_bandwidth_tbs", 1e12)
    l2_bytes: float = stated(0, 4096, "l2_mib", 2.0**20)
    llc_bytes: float = stated(0, 16_384, "llc_mib", 2.0**20)
    shared_memory_per_cu: float = stated(0, 4096, "shared_memory_kib_per_cu", 2.0**10)
    dies: int = stated(1, 64)
    tdp_watts: float = stated(1, 20_000)
    flops_per_clock: Mapping[str, float] = stated(1, 1e7, needed=True, default_factory=dict)
    sources: tuple[str, ...] = ()
    efficiency_file: str = ""
    base: str = ""
    shown: tuple[str, ...] = ()

    def peak_of(self, dtype: str) -> float:
        """Returns the dense peak of an operand type; a type the device lacks falls back on the next wider one it has.

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
    :data:`PATHS`).
    """

    name: str = stated()
    topology: str = stated(words=TOPOLOGIES)
    size: int = stated(1, ANY_SIZE)
    bandwidth: float = stated(1e-3, 1e5, "bandwidth_gbs", 1e9)
    latency: float = stated(0, 1e5, "latency_us", 1e-6)
    in_switch_reduction: bool = stated(default=False)
    nics_per_node: int | None = stated(1, 4096, default=None)
    technology: str = stated(words=TECHNOLOGIES, default="")
    path: str = stated(words=PATHS, default="pxb")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """GPUs of one type joined by an intra-node (or NVLink-domain) fabric and an inter-node one.

    ``gpus_per_node`` is the size of the fast domain that ranks fill first (72 for NVL72), ``gpus_per_host`` the GPUs of
    one operating system. ``inter`` joins ``inter.size`` GPUs, a pod; ``outer`` joins pods (None: no third level).
    ``host_link``: bytes/s per direction between host memory and one GPU; ``host_memory``: bytes/s of all memory channels
    of a host, ``host_capacity``: its bytes (None: those of the usual host of the GPU). ``processor``: of the host, ``x86``
    or ``grace`` (None: see ``host``).
    """

    name: str = stated()
    gpu: Gpu
    gpus_per_node: int = stated(1, 4096)
    gpus_per_host: int = stated(1, 4096)
    intra: Fabric
    inter: Fabric
    outer: Fabric | None = None
    processor: str | None = stated(key="host", words=("x86", "grace"), default=None)
    host_link: float | None = stated(1e-3, 1e5, "host_link_gbs", 1e9, default=None)
    host_memory: float | None = stated(1e-3, 1e5, "host_memory_gbs", 1e9, default=None)
    host_capacity: float | None = stated(1e-3, 1e5, "host_memory_gib", 2.0**30, default=None)
    overrides: Mapping[str, float] = field(default_factory=dict)
    sources: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        """Returns the host's processor: as stated, else Grace where one NVLink domain spans several hosts."""
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
        """Returns the ranks in the fullest node."""
        return max(self.counts) if self.counts else min(self.per_node, self.size)

    @property
    def fewest(self) -> int:
        """Returns the ranks in the emptiest node."""
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
        parameter = self.parameters.get(name)
        return priors()[name].value if parameter is None else parameter.value

    def get(self, name: str, default: float) -> float:
        """Returns what ``parameters`` state, else ``default``: for factors that change nothing where they are not
        stated."""
        parameter = self.parameters.get(name)
        return default if parameter is None else parameter.value
