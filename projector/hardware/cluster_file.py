"""One cluster from one YAML file (``clusters/*.yaml``, or a user's own).

``inter.size`` GPUs make a pod; a third level, ``outer``, joins pods where a file has one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from projector.errors import InputError
from projector.hardware.types import Cluster, Fabric, Gpu
from projector.hardware.yaml_file import SUFFIXES, Reader, read_mapping

TOPOLOGIES = ("switch", "mesh", "ring", "pcie")
# Networks between nodes with constants of their own (collectives/constants.yaml); InfiniBand has those of the library.
TECHNOLOGIES = ("infiniband", "roce", "slingshot", "efa", "ainic", "tcpx", "tcpxo", "tcp")
HOSTS = ("x86", "grace")
# An inter-node fabric joins as many GPUs as a job asks for.
ANY_SIZE = 1 << 20
_KEYS = (
    "name",
    "title",
    "gpu",
    "host",
    "gpus_per_node",
    "gpus_per_host",
    "intra",
    "inter",
    "outer",
    "notes",
    "sources",
)
_HOST_KEYS = ("host_link_gbs", "host_memory_gbs")
_FABRIC_KEYS = (
    "name",
    "topology",
    "size",
    "bandwidth_gbs",
    "latency_us",
    "in_switch_reduction",
    "nics_per_node",
    "technology",
)
_SOURCED = ("intra.bandwidth_gbs", "intra.latency_us", "inter.bandwidth_gbs", "inter.latency_us")
_SOURCED_OUTER = ("outer.bandwidth_gbs", "outer.latency_us")


def read_cluster(path: Path, find_gpu: Callable[[str], Gpu]) -> Cluster:
    """Reads and checks one cluster file; ``find_gpu`` resolves its ``gpu``. Raises InputError with every mistake."""
    read = Reader(read_mapping(path), str(path))
    read.known((*_KEYS, *_HOST_KEYS))
    gpu = _gpu(read, find_gpu, path.parent)
    per_node = read.integer("gpus_per_node", 1, 4096)
    per_host = read.integer("gpus_per_host", 1, 4096, default=per_node)
    if per_node % per_host:
        read.fail("gpus_per_host", per_host, f"a divisor of gpus_per_node = {per_node}")
    intra = _fabric(read, "intra", per_node)
    inter = _fabric(read, "inter", ANY_SIZE)
    outer = _fabric(read, "outer", ANY_SIZE) if "outer" in read.mapping else None
    processor = read.choice("host", HOSTS) if "host" in read.mapping else None
    host = [read.number(key, 1e-3, 1e5) * 1e9 if key in read.mapping else None for key in _HOST_KEYS]
    name = read.text("name")
    sources = read.sources(_SOURCED if outer is None else (*_SOURCED, *_SOURCED_OUTER))
    if read.problems or gpu is None:
        raise InputError(read.problems)
    return Cluster(
        name=name,
        gpu=gpu,
        gpus_per_node=per_node,
        gpus_per_host=per_host,
        intra=intra,
        inter=inter,
        outer=outer,
        processor=processor,
        host_link=host[0],
        host_memory=host[1],
        sources=sources,
    )


def _gpu(read: Reader, find_gpu: Callable[[str], Gpu], folder: Path) -> Gpu | None:
    name = read.text("gpu")
    beside = name.endswith(SUFFIXES) and (folder / name).is_file()
    try:
        return find_gpu(str(folder / name) if beside else name)  # a device described beside its cluster
    except InputError as error:
        if beside:
            read.problems += error.problems  # they name the file and the key themselves
        else:
            for problem in error.problems:
                read.fail("gpu", problem.found, problem.expected)
        return None


def _fabric(outer: Reader, level: str, size: int) -> Fabric:
    value: Any = outer.mapping.get(level)
    if not isinstance(value, dict):
        outer.fail(level, value, f"a mapping with {', '.join(_FABRIC_KEYS)}")
        value = {"name": level, "topology": "switch", "bandwidth_gbs": 1, "latency_us": 1}
    read = Reader(value, outer.where, f"{level}.")
    read.known(_FABRIC_KEYS)
    nics = read.integer("nics_per_node", 1, 4096) if "nics_per_node" in value else None
    fabric = Fabric(
        name=read.text("name"),
        topology=read.choice("topology", TOPOLOGIES),
        size=read.integer("size", 1, ANY_SIZE, default=size),
        bandwidth=read.number("bandwidth_gbs", 1e-3, 1e5) * 1e9,
        latency=read.number("latency_us", 0, 1e5) * 1e-6,
        in_switch_reduction=read.switch("in_switch_reduction"),
        nics_per_node=nics,
        technology=read.choice("technology", TECHNOLOGIES) if "technology" in value else "",
    )
    outer.problems.extend(read.problems)
    return fabric
