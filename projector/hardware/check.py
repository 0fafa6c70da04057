"""Checks a cluster that was made in Python: types, and figures that no device has."""

from __future__ import annotations

import re

from projector.errors import Problem
from projector.hardware.types import TOPOLOGIES, Cluster, Fabric, Gpu, stated_of
from projector.io.typed import of_type

_MOST = 1e25  # bytes, FLOP/s: a million times the largest there is
_LEAST = 1e-3
_EXPECTED = f"a number from {_LEAST:g} to {_MOST:g}"
_STEM = re.compile(r"[^/\\\x00-\x1f]{1,80}")


def problems(cluster: object, where: str = "") -> tuple[Problem, ...]:
    """Returns every mistake of ``cluster``; none where it can be projected on."""
    type_mistakes = of_type(cluster, Cluster, where, "cluster.")
    if type_mistakes or not isinstance(cluster, Cluster):
        return tuple(type_mistakes)
    mistakes = _sizes(cluster, where, "cluster.")
    mistakes += gpu_problems(cluster.gpu, where, "cluster.gpu.")
    for name in ("intra", "inter", "outer"):
        fabric: Fabric | None = getattr(cluster, name)
        if fabric is not None:
            mistakes += _sizes(fabric, where, f"cluster.{name}.")
            if fabric.topology not in TOPOLOGIES:
                expected = f"one of {', '.join(TOPOLOGIES)}"
                mistakes.append(Problem(where, f"cluster.{name}.topology", fabric.topology, expected))
    if not mistakes and cluster.gpus_per_node % cluster.gpus_per_host:
        expected = f"a divisor of gpus_per_node = {cluster.gpus_per_node}"
        mistakes.append(Problem(where, "cluster.gpus_per_host", cluster.gpus_per_host, expected))
    return tuple(mistakes)


def gpu_problems(gpu: object, where: str = "", prefix: str = "gpu.") -> list[Problem]:
    """Returns every mistake of a device."""
    type_mistakes = of_type(gpu, Gpu, where, prefix)
    if type_mistakes or not isinstance(gpu, Gpu):
        return type_mistakes
    mistakes = _sizes(gpu, where, prefix)
    for name in ("name", "vendor", "arch"):  # they find the files of their efficiency parameters and kernel tables
        if not _STEM.fullmatch(getattr(gpu, name)):
            mistakes.append(Problem(where, prefix + name, getattr(gpu, name), "a short name without a slash"))
    rates = {f"{name}.{key}": rate for name in ("peak", "flops_per_clock") for key, rate in getattr(gpu, name).items()}
    wrong = ((key, rate) for key, rate in rates.items() if not _LEAST <= rate <= _MOST)
    return mistakes + [Problem(where, prefix + key, rate, _EXPECTED) for key, rate in wrong]


def _sizes(item: object, where: str, prefix: str) -> list[Problem]:
    mistakes = []
    for name, bounds in stated_of(type(item)).items():
        value = getattr(item, name)
        if type(value) not in (int, float) or _LEAST <= value <= _MOST:
            continue
        if bounds.least > 0 or value < 0 or value > _LEAST:  # of a latency or a cache there may be less
            mistakes.append(Problem(where, prefix + name, value, _EXPECTED))
    return mistakes
