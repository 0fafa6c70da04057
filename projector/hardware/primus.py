"""Primus' ``hardware_config:`` files onto a cluster: its keys, its units, its numbers written as text.

Source: AMD-AGI/Primus@739a329b, ``primus/core/projection/module_profilers/collective_args.py`` and
``examples/hardware_configs``.

Bandwidths are GB/s per direction, ``node_bw`` of one GPU inside its node and ``pod_bw`` of one adapter; latencies are
microseconds. Keys that tune Primus' own formulas and have no counterpart here are accepted and listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from projector.errors import InputError, Problem, nearest
from projector.hardware.types import Cluster
from projector.hardware.yaml_file import read_mapping

__all__ = ["Applied", "apply", "read"]

_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
# Ranges of the numbers that change a cluster: (low, high, whole).
_NUMBERS: dict[str, tuple[float, float, bool]] = {
    "node_size": (1, 4096, True),
    "nics_per_node": (1, 4096, True),
    "node_bw": (1e-3, 1e5, False),
    "pod_bw": (1e-3, 1e5, False),
    "node_lat": (0, 1e5, False),
    "pod_lat": (0, 1e5, False),
    "bw_eff": (1e-3, 1, False),
    "p2p_bw_eff": (1e-3, 1, False),
    "rccl_overhead_us": (0, 1e6, False),
    "a2a_rccl_overhead_us": (0, 1e6, False),
    "a2a_intra_sync_overhead": (0, 1e6, False),
    "a2a_peer_lat": (0, 1e5, False),
    "a2a_intra_node_peer_lat": (0, 1e5, False),
    "a2a_mesh_contention": (0, 0.99, False),
    "a2a_remote_contention": (0, 1, False),
}
_TOPOLOGIES = ("switch", "mesh")
# Read by Primus, without a counterpart here: a third network level, its all-reduce pipelining and NIC ramp, the
# latencies of its protocol formulas, run sizes that the workload states.
_UNUSED_NUMBERS = (
    *("pod_size", "cluster_bw", "cluster_lat", "hbm_latency", "write_latency", "write_resp", "kernel_launch_latency"),
    *("vector_flops", "ar_overlap_factor", "ar_warmup_chunk_bytes", "nic_rdma_setup_us", "nic_warmup_bytes"),
    *("num_nodes", "hp", "pp", "cp", "ep", "gpus_per_tray"),
)
# Keys of Primus' own custom_hardware_example.yaml that its reader warns about and skips.
_EXAMPLE_ONLY = (
    *("gpu_memory_gb", "gpu_compute_tflops", "intra_node_bandwidth_gbps", "intra_node_latency_us", "gpus_per_node"),
    *("inter_node_bandwidth_gbps", "inter_node_latency_us", "intra_node_efficiency", "inter_node_efficiency"),
    *("alltoall_intra_efficiency", "alltoall_inter_efficiency"),
)
_KNOWN = (*_NUMBERS, "node_topology", "switch_topology", *_UNUSED_NUMBERS, *_EXAMPLE_ONLY)


@dataclass(frozen=True)
class Applied:
    """The cluster after a file, and the keys of the file that change nothing here."""

    cluster: Cluster
    ignored: tuple[str, ...]


def apply(path: str | Path, cluster: Cluster) -> Cluster:
    """``cluster`` with the values of a Primus hardware file. Raises InputError with every mistake of the file."""
    return read(path, cluster).cluster


def read(path: str | Path, cluster: Cluster) -> Applied:
    """As :func:`apply`, with the keys that have no effect. A file without ``hardware_config`` changes nothing."""
    where = str(path)
    top = read_mapping(Path(path))
    section = top.get("hardware_config")
    if section is None:
        section = {}
    if not isinstance(section, dict):
        raise InputError([Problem(where, "hardware_config", section, "a mapping of hardware parameters")])
    problems = [
        Problem(where, f"hardware_config.{key}", key, nearest(str(key), _KNOWN)) for key in section if key not in _KNOWN
    ]
    values = _values(section, where, problems)
    if problems:
        raise InputError(problems)
    ignored = tuple(key for key in section if key in (*_UNUSED_NUMBERS, *_EXAMPLE_ONLY, "switch_topology"))
    return Applied(_changed(cluster, values, where, ignored), ignored)


def _values(section: Mapping[str, Any], where: str, problems: list[Problem]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in section.items():
        place = f"hardware_config.{key}"
        if value is None:
            continue
        if key in _NUMBERS:
            low, high, whole = _NUMBERS[key]
            number = _number(value)
            if number is None or not low <= number <= high or (whole and number != int(number)):
                kind = "whole number" if whole else "number"
                problems.append(Problem(where, place, value, f"a {kind} from {low:g} to {high:g}"))
            else:
                found[key] = int(number) if whole else number
        elif key in _UNUSED_NUMBERS and _number(value) is None:
            problems.append(Problem(where, place, value, "a number"))
        elif key == "node_topology":
            if str(value).lower() not in _TOPOLOGIES:
                problems.append(Problem(where, place, value, f"one of {', '.join(_TOPOLOGIES)}"))
            found[key] = str(value).lower()
        elif key == "switch_topology" and not isinstance(value, bool) and str(value).lower() not in _WORDS:
            problems.append(Problem(where, place, value, "true or false"))
    return found


def _number(value: object) -> float | None:
    """A number, also from text: PyYAML reads ``3.2e12`` as text, and Primus converts it."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _changed(base: Cluster, values: Mapping[str, Any], where: str, ignored: tuple[str, ...]) -> Cluster:
    if not values and not ignored:
        return base
    size = values.get("node_size", base.gpus_per_node)
    intra = replace(
        base.intra,
        topology=values.get("node_topology", base.intra.topology),
        size=values.get("node_size", base.intra.size),
        bandwidth=values["node_bw"] * 1e9 if "node_bw" in values else base.intra.bandwidth,
        latency=values["node_lat"] * 1e-6 if "node_lat" in values else base.intra.latency,
    )
    nics = values.get("nics_per_node", base.inter.nics_per_node or base.gpus_per_node)
    adapter = base.inter.bandwidth * base.gpus_per_node / (base.inter.nics_per_node or base.gpus_per_node)
    adapter = values["pod_bw"] * 1e9 if "pod_bw" in values else adapter
    inter = replace(
        base.inter,
        bandwidth=adapter * nics / size,
        latency=values["pod_lat"] * 1e-6 if "pod_lat" in values else base.inter.latency,
        nics_per_node=nics,
    )
    stated = ", ".join(f"{key}={value}" for key, value in values.items())
    notes = [f"{where}: {stated}"] if stated else []
    if ignored:
        notes.append(f"{where}: without effect: {', '.join(ignored)}")
    return replace(
        base,
        gpus_per_node=size,
        gpus_per_host=size if "node_size" in values else base.gpus_per_host,
        intra=intra,
        inter=inter,
        overrides={**base.overrides, **_overrides(values)},
        sources=(*base.sources, *notes),
    )


def _overrides(values: Mapping[str, Any]) -> dict[str, float]:
    """Constants of the collective model by their names there."""
    found: dict[str, float] = {}
    if "bw_eff" in values:
        shares = (
            "intra",
            "intra.all_gather",
            "intra.reduce_scatter",
            "inter",
            "nvls",
            "all_to_all.intra",
            "all_to_all.inter",
        )
        found.update({f"link.{name}": values["bw_eff"] for name in shares})
    if "p2p_bw_eff" in values:
        found.update({f"link.send_recv.{level}": values["p2p_bw_eff"] for level in ("intra", "inter")})
    if "rccl_overhead_us" in values:
        found["overhead_us.all_reduce"] = values["rccl_overhead_us"]
    fixed = [values[key] for key in ("a2a_rccl_overhead_us", "a2a_intra_sync_overhead") if key in values]
    if fixed:
        found["overhead_us.all_to_all"] = sum(fixed)
    renamed = {
        "a2a_peer_lat": "peer_us.inter",
        "a2a_intra_node_peer_lat": "peer_us.intra",
        "a2a_mesh_contention": "contention.mesh",
        "a2a_remote_contention": "contention.remote",
    }
    found.update({name: values[key] for key, name in renamed.items() if key in values})
    return found
