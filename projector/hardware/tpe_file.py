"""Reads a system as transformer-perf-estimates describes one (ShashankSubramanian/transformer-perf-estimates@54278b0,
``systems/*.json``): a GPU and its two tiers of links, in TFLOP/s, GB/s, GB and seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from projector.errors import InputError, Problem, nearest
from projector.hardware.scaled import with_faster_units
from projector.hardware.types import Cluster

#: Its keys, with the unit of each in ours.
_UNITS = {
    **dict.fromkeys(("matrix_flops_fp16", "vector_flops_fp16"), 1e12),
    **dict.fromkeys(("hbm_bandwidth", "hbm_capacity", "nvlink_bandwidth", "ib_bandwidth"), 1e9),
    **dict.fromkeys(("element_size", "mask_element_size"), 1e9),
    **dict.fromkeys(("nvlink_eff", "nvlink_latency", "nvlink_size", "ib_eff", "ib_latency", "nic_factor"), 1.0),
}
_MAY_BE_NOTHING = frozenset({"nvlink_latency", "ib_latency"})
# Keys of its files that none of its laws reads, or that are set otherwise.
_IGNORED = frozenset({"vector_flops_fp32", "empirical", "flops_units", "summa_nb"})


def is_tpe(mapping: Mapping[str, Any]) -> bool:
    """Returns whether a hardware file is written with the keys of transformer-perf-estimates."""
    return len(_UNITS.keys() & mapping.keys()) > 1


def numbers(mapping: Mapping[str, Any], where: str) -> dict[str, float]:
    """Returns every figure by its key: FLOP/s, bytes/s, bytes, seconds. Raises :class:`InputError` with every
    mistake."""
    problems = [Problem(where, key, "nothing", "a number") for key in _UNITS if key not in mapping]
    known = (*_UNITS, *_IGNORED)
    problems += [Problem(where, key, "an unknown key", nearest(key, known)) for key in sorted({*mapping} - {*known})]
    if mapping.get("empirical"):
        problems.append(Problem(where, "empirical", "true", "false: its measured link table is not part of the tool"))
    for key in _UNITS.keys() & mapping.keys():
        value, least = mapping[key], "0 or more" if key in _MAY_BE_NOTHING else "above 0"
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < 0 or (value == 0 and key not in _MAY_BE_NOTHING):
            problems.append(Problem(where, key, repr(value), f"a finite number {least}"))
        elif key == "nvlink_size" and value != int(value):
            problems.append(Problem(where, key, repr(value), "a whole number of GPUs"))
    if problems:
        raise InputError(sorted(problems, key=lambda each: each.key))
    return {key: unit * mapping[key] for key, unit in _UNITS.items()}


def cluster(mapping: Mapping[str, Any], where: str, name: str) -> tuple[Cluster, str]:
    """Returns our cluster of such a system, and the cluster whose GPU it is made of.

    Rates, capacity, links, hops and the size of a domain are those of the file. What it does not say (clocks, caches,
    kernels, power, hosts) is that of NVIDIA's system in the catalogue which is nearest in those: the tool assumes
    NVIDIA's. All types of operands and the exponentials are faster by the same factor as its matrices. Its shares of
    the links' rates belong to its own law of collectives; ours has its own.
    """
    from projector.hardware import catalogue

    file = numbers(mapping, where)
    names = [name for name in catalogue.gpu_names() if name in catalogue.cluster_names()]
    known = [each for each in map(catalogue.default_cluster, names) if each.gpu.vendor == "nvidia"]
    like = min(known, key=lambda each: _distance(file, each))
    gpu, domain = like.gpu, int(file["nvlink_size"])
    chip = replace(
        with_faster_units(gpu, file["matrix_flops_fp16"] / gpu.peak_of("bf16")),
        name=name,
        title=name,
        memory_bytes=file["hbm_capacity"],
        usable_memory_bytes=file["hbm_capacity"] * gpu.usable_memory_bytes / gpu.memory_bytes,
        memory_bandwidth=file["hbm_bandwidth"],
    )
    inside, network = file["nvlink_bandwidth"], file["ib_bandwidth"] * file["nic_factor"]
    intra = replace(like.intra, size=domain, bandwidth=inside, latency=file["nvlink_latency"], nics_per_node=None)
    inter = replace(like.inter, bandwidth=network, latency=file["ib_latency"], nics_per_node=None)
    sizes: dict[str, Any] = {"gpus_per_node": domain, "gpus_per_host": math.gcd(domain, like.gpus_per_host)}
    fabrics: dict[str, Any] = {"intra": intra, "inter": inter, "outer": None, "processor": like.host}
    sources = (f"{where}: a system of transformer-perf-estimates",)
    return replace(like, name=name, gpu=chip, **sizes, **fabrics, sources=sources), like.name


def _distance(stated: Mapping[str, float], other: Cluster) -> float:
    theirs = {
        "matrix_flops_fp16": other.gpu.peak_of("bf16"),
        "hbm_bandwidth": other.gpu.memory_bandwidth,
        "hbm_capacity": other.gpu.memory_bytes,
        "nvlink_bandwidth": other.intra.bandwidth,
        "nvlink_size": other.gpus_per_node,
    }
    return sum(abs(math.log(stated[key] / value)) for key, value in theirs.items())
