"""Reads one cluster from one YAML file (``clusters/*.yaml``, or a user's own), and writes one.

``inter.size`` GPUs make a pod; a third level, ``outer``, joins pods where a file has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from projector.errors import InputError
from projector.hardware.architectures import TRANSPORTS, known
from projector.hardware.types import ANY_SIZE, Cluster, Fabric, Gpu
from projector.hardware.yaml_file import SUFFIXES, Reader, changed, keys_of, read_described, written
from projector.parameter import parameter

_EXTRA = ("title", "gpu", "intra", "inter", "outer", "collectives", "notes", "sources")
_BUSBW, _BUSBW_ALONE = "busbw_gbs", "busbw_one_rank_gbs"
_FILL = parameter(
    1.02,
    kind="derived",
    source="a measured rate holds the fill of the pipeline as well, as link.inter of collectives/constants.yaml has it",
)
# Shares of the lines (collectives/constants.yaml) that a file may state, as `projector network` measures them.
_RINGS = ("all_gather", "reduce_scatter", "broadcast")
SHARES = (
    *("link.nvls", "link.intra", "link.inter", "link.inter.alone", "link.outer"),
    *(f"link.{level}.{kind}" for level in ("intra", "inter") for kind in _RINGS),
    *(f"link.{kind}.{level}" for level in ("intra", "inter") for kind in ("all_to_all", "send_recv")),
)
_SOURCED = ("intra.bandwidth_gbs", "intra.latency_us", "inter.bandwidth_gbs", "inter.latency_us")
_SOURCED_OUTER = ("outer.bandwidth_gbs", "outer.latency_us")


def read_cluster(
    path: Path, find_gpu: Callable[[str], Gpu], changes: Mapping[str, Any] = MappingProxyType({})
) -> Cluster:
    """Reads and checks one cluster file, with ``changes`` of its keys for a what-if; ``find_gpu`` resolves its ``gpu``.
    Raises InputError with every mistake."""
    stated = read_described(path)
    read = Reader(changed(stated, changes) if changes else stated, str(path))
    read.known((*keys_of(Cluster), *_EXTRA))
    gpu = _gpu(read, find_gpu, path.parent)
    figures = read.fields(Cluster, gpus_per_host=None)
    per_node = figures["gpus_per_node"]
    figures["gpus_per_host"] = per_host = figures["gpus_per_host"] or per_node
    if per_node % per_host:
        read.fail("gpus_per_host", per_host, f"a divisor of gpus_per_node = {per_node}")
    intra = _fabric(read, "intra", per_node)
    inter = _fabric(read, "inter", ANY_SIZE)
    outer = _fabric(read, "outer", ANY_SIZE) if "outer" in read.mapping else None
    shares = _shares(read)
    measured = _measured(read, inter, per_node) | shares
    if intra.in_switch_reduction and gpu and "nvls" not in (known(gpu.arch, TRANSPORTS) or {"nvls"}):
        read.fail("intra.in_switch_reduction", True, f"false: {gpu.arch} has no NVLink SHARP")
    sourced = (*_SOURCED, *(_SOURCED_OUTER if outer else ()), *(f"collectives.{share}" for share in shares))
    sources = read.sources(sourced)
    if read.problems or gpu is None:
        raise InputError(read.problems)
    return Cluster(**figures, gpu=gpu, intra=intra, inter=inter, outer=outer, sources=sources, overrides=measured)


def _gpu(read: Reader, find_gpu: Callable[[str], Gpu], folder: Path) -> Gpu | None:
    name = read.text("gpu")
    beside_cluster = name.endswith(SUFFIXES) and (folder / name).is_file()
    try:
        return find_gpu(str(folder / name) if beside_cluster else name)  # a device described beside its cluster
    except InputError as error:
        if beside_cluster:
            read.problems += error.problems  # they name the file and the key themselves
        else:
            for problem in error.problems:
                read.fail("gpu", problem.found, problem.expected)
        return None


def _measured(outer: Reader, inter: Fabric, per_node: int) -> dict[str, float]:
    """Returns the shares of the lines between nodes that ``inter.busbw_gbs`` and ``inter.busbw_one_rank_gbs`` state:
    bus bandwidth of nccl-tests' or rccl-tests' ``all_reduce_perf`` at its longest message on two nodes or more, with
    all GPUs of each, and with one. Messages from rank to rank and of all with all reach as much where the network has
    no figures of its own."""
    value = outer.mapping.get("inter")
    between = outer.inside("inter", value if isinstance(value, dict) else {})
    shares = {}
    for key, ranks in ((_BUSBW, per_node), (_BUSBW_ALONE, 1)):
        if key not in between.mapping:
            continue
        stated, line = between.number(key, 1e-3, 1e5) * 1e9, inter.bandwidth * ranks
        if stated > line:
            between.fail(key, between.mapping[key], f"at most the line of {ranks} x {inter.bandwidth / 1e9:g} GB/s")
        shares[key] = min(1.0, _FILL * stated / line)
    kinds = ("",) if inter.technology else ("", ".send_recv", ".all_to_all")
    links = {f"link{kind}.inter": shares[_BUSBW] for kind in kinds if _BUSBW in shares}
    return links | ({"link.inter.alone": shares[_BUSBW_ALONE]} if _BUSBW_ALONE in shares else {})


def _shares(outer: Reader) -> dict[str, float]:
    """Returns the shares of the lines that long messages reach on this cluster: ``collectives``."""
    value = outer.mapping.get("collectives", {})
    if not isinstance(value, dict):
        outer.fail("collectives", value, f"a mapping with some of {', '.join(SHARES)}")
        return {}
    read = outer.inside("collectives", value)
    read.known(SHARES)
    if isinstance(between := outer.mapping.get("inter"), dict) and _BUSBW in between and "link.inter" in value:
        read.fail("link.inter", value["link.inter"], f"either it or inter.{_BUSBW}")
    return {name: read.number(name, 1e-3, 1.0) for name in value if name in SHARES}


def _fabric(outer: Reader, level: str, size: int) -> Fabric:
    value: Any = outer.mapping.get(level)
    if not isinstance(value, dict):
        outer.fail(level, value, f"a mapping with {', '.join(keys_of(Fabric))}")
        value = {"name": level, "topology": "switch", "bandwidth_gbs": 1, "latency_us": 1}
    read = outer.inside(level, value)
    read.known((*keys_of(Fabric), *((_BUSBW, _BUSBW_ALONE) if level == "inter" else ())))
    return Fabric(**read.fields(Fabric, size=size))


def text(cluster: Cluster, gpu: str, like: str, measured: Sequence[tuple[str, str]]) -> str:
    """Returns a cluster file. ``gpu``: how it names its GPU; ``like``: whose lines it has; ``measured``: (share, how) of
    others."""
    levels = {"intra": cluster.intra, "inter": cluster.inter} | ({"outer": cluster.outer} if cluster.outer else {})
    shares = {name: float(f"{value:.6g}") for name, value in cluster.overrides.items() if name in SHARES}
    origins = {f"collectives.{name}": how for name, how in measured}
    stated = [f"{level}.{key}" for level in levels for key in ("bandwidth_gbs", "latency_us")]
    stated += [f"collectives.{name}" for name in shares if f"collectives.{name}" not in origins]
    content: dict[str, Any] = {
        **written(cluster, 9),
        "gpu": gpu,
        **{level: written(fabric, 9) for level, fabric in levels.items()},
        "collectives": shares,
        "sources": [
            {"title": f"as {like}", "kind": "derived", "values": stated},
            *({"title": how, "kind": "measured", "values": [key]} for key, how in origins.items()),
        ],
    }
    return yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True, default_flow_style=None)
