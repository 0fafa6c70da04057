"""Applies Primus' ``hardware_config:`` files to a cluster: its keys, its units, its numbers written as text.

Source: AMD-AGI/Primus@739a329b, ``primus/core/projection/module_profilers/collective_args.py`` and
``examples/hardware_configs``.

Bandwidths are GB/s per direction, ``node_bw`` of one GPU inside its node, ``pod_bw`` of one adapter and ``cluster_bw``
of one adapter between pods of ``pod_size`` GPUs; latencies are microseconds. Primus' shipped files bound a pod at 64
GPUs, beyond which they halve the rate. The sizes of a run (``pp``, …) are the workload's: accepted and listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, raise_all
from projector.hardware.types import ANY_SIZE, Cluster, Fabric
from projector.hardware.yaml_file import Reader, as_number, read_mapping
from projector.io.files import read_yaml
from projector.parameter import parameter

_SWITCHES = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_WORDS: Mapping[str, tuple[Mapping[str, str | bool], str]] = {
    "node_topology": ({"switch": "switch", "mesh": "mesh"}, "one of switch, mesh"),
    "switch_topology": (_SWITCHES, "true or false"),
}
_PROTOCOL_US = parameter(
    {"hbm_latency": 0.09, "write_latency": 0.28, "write_resp": 0.09},
    unit="us",
    kind="published",
    source="AMD-AGI/Primus@739a329b collective_args.py: latencies of its protocols where a file states some of them only",
)


def keys() -> Mapping[str, Any]:
    """Returns the table of ``primus.yaml``: ``numbers``, ``words``, ``unused`` and ``example_only`` keys of a file."""
    table: Mapping[str, Any] = read_yaml(Path(__file__).with_suffix(".yaml"))
    return table


def felt_by(key: str) -> str:
    """Returns which collectives a key of the file changes; empty where it changes all of them."""
    return str({**keys()["numbers"], **keys()["words"]}[key].get("felt_by", ""))


@dataclass(frozen=True)
class Applied:
    """The cluster after a file, the keys of the file that change nothing here, and those that do."""

    cluster: Cluster
    ignored: tuple[str, ...]
    stated: tuple[str, ...] = ()


def read(path: str | Path, cluster: Cluster, without: str = "") -> Applied:
    """Returns ``cluster`` with the values of a Primus hardware file, and the keys with and without effect; the key
    ``without`` is passed over, an empty ``hardware_config`` changes nothing. Raises InputError with every mistake."""
    where = str(path)
    top = read_mapping(Path(path))
    section = top.get("hardware_config")
    if top and "hardware_config" not in top:
        expected = "the key hardware_config with a mapping of hardware parameters"
        raise InputError([Problem(where, "", ", ".join(list(top)[:6]), expected)])
    if section is None:
        section = {}
    if not isinstance(section, dict):
        raise InputError([Problem(where, "hardware_config", section, "a mapping of hardware parameters")])
    table = keys()
    unused = (*table["unused"], *table["example_only"])
    read = Reader(section, where, "hardware_config.")
    read.known((*table["numbers"], *table["words"], *unused))
    values = _values(read, table)
    raise_all(read.problems)
    values.pop(without, None)
    without_pod = () if "pod_size" in values else ("cluster_bw", "cluster_lat")
    ignored = tuple(key for key in section if key in (*unused, *without_pod))
    stated = tuple(key for key in values if key not in ignored)
    return Applied(_with_values(cluster, values, where, ignored), ignored, stated)


def _values(read: Reader, table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a section in the types of the ``table``; PyYAML reads ``3.2e12`` as text, and Primus converts
    it, as it does the case of a word."""
    values = dict[str, Any]()
    for key, value in read.mapping.items():
        if value is None:
            continue
        if key in table["numbers"]:
            about = table["numbers"][key]
            values[key] = (read.integer if "whole" in about else read.number)(key, *about["range"])
        elif key in table["unused"] and not isinstance(as_number(value), int | float):
            read.fail(key, value, "a number")
        elif key in _WORDS:
            words, expected = _WORDS[key]
            if str(value).lower() not in words:
                read.fail(key, value, expected)
            values[key] = words.get(str(value).lower())
    return values


def _with_values(base: Cluster, values: Mapping[str, Any], where: str, ignored: tuple[str, ...]) -> Cluster:
    if not values and not ignored:
        return base
    stated = ", ".join(f"{key}={value}" for key, value in values.items() if key not in ignored)
    notes = [f"{where}: {stated}"] if stated else []
    if ignored:
        notes.append(f"{where}: without effect: {', '.join(ignored)}")
    units = {key: about["unit"] for key, about in keys()["numbers"].items() if "unit" in about and key in values}
    values = {**values, **{key: values[key] * unit for key, unit in units.items()}}
    size = values.get("node_size", base.gpus_per_node)
    inter = _network(base, values, size)
    fields = {"node_topology": "topology", "node_size": "size", "node_bw": "bandwidth", "node_lat": "latency"}
    return replace(
        base,
        gpus_per_node=size,
        gpus_per_host=values.get("node_size", base.gpus_per_host),
        intra=replace(base.intra, **{field: values[key] for key, field in fields.items() if key in values}),
        inter=inter,
        outer=_beyond_the_pod(base, values, inter, size),
        overrides={**base.overrides, **_overrides(values)},
        sources=(*base.sources, *notes),
    )


def _network(base: Cluster, values: Mapping[str, Any], size: int) -> Fabric:
    """Returns the network of a pod; every rank has its part of the adapters of its node."""
    nics = values.get("nics_per_node", base.inter.nics_per_node or base.gpus_per_node)
    adapter = base.inter.bandwidth * base.gpus_per_node / (base.inter.nics_per_node or base.gpus_per_node)
    topology = base.inter.topology
    if "switch_topology" in values:
        topology = "switch" if values["switch_topology"] else "ring"
    return replace(
        base.inter,
        topology=topology,
        size=max(size, values.get("pod_size", base.inter.size)),
        bandwidth=values.get("pod_bw", adapter) * nics / size,
        latency=values.get("pod_lat", base.inter.latency),
        nics_per_node=nics,
    )


def _beyond_the_pod(base: Cluster, values: Mapping[str, Any], inter: Fabric, size: int) -> Fabric | None:
    """Returns the third level, where the file bounds a pod; it is like the second in what the file leaves out."""
    if "pod_size" not in values:
        return base.outer
    rate = values["cluster_bw"] * (inter.nics_per_node or size) / size if "cluster_bw" in values else inter.bandwidth
    latency = values.get("cluster_lat", inter.latency)
    return Fabric(name="between pods", topology=inter.topology, size=ANY_SIZE, bandwidth=rate, latency=latency)


def _overrides(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the constants of the collective model by their names there."""
    constants: dict[str, float] = {}
    if "bw_eff" in values:
        constants.update({f"link.{name}": values["bw_eff"] for name in _SHARES})
    if "p2p_bw_eff" in values:
        constants.update({f"link.send_recv.{level}": values["p2p_bw_eff"] for level in ("intra", "inter")})
    overheads = [values[key] for key in ("a2a_rccl_overhead_us", "a2a_intra_sync_overhead") if key in values]
    if overheads:
        constants["overhead_us.all_to_all"] = sum(overheads)
    if any(key in values for key in _PROTOCOL_US):
        constants.update(_protocols(values))
    numbers = keys()["numbers"]
    named = {key: numbers[key]["constant"] for key in values if "constant" in numbers.get(key, {})}
    return constants | {name: values[key] for key, name in named.items()}


def _protocols(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns what a hop costs beyond the fabric: one write under LL and LL128; two and an answer under Simple."""
    memory, write, answer = (values.get(key, usual) for key, usual in _PROTOCOL_US.items())
    hops = {"ll": memory + write, "ll128": memory + write, "simple": memory + 2 * write + answer}
    return {f"extra_us.{level}.{name}": us for level in ("intra", "inter") for name, us in hops.items()}


_SHARES = (
    *("intra", "intra.all_gather", "intra.reduce_scatter", "inter", "nvls"),
    *("all_to_all.intra", "all_to_all.inter", "dispatch.intra", "dispatch.inter"),
)
