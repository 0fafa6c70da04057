"""What is wrong with a cluster that was made in Python: types, and figures that no device has."""

from __future__ import annotations

import re
from collections.abc import Mapping

from projector.errors import Problem
from projector.hardware.types import TOPOLOGIES, Cluster, Fabric, Gpu, stated_of
from projector.io.typed import of_type

_MOST = 1e25  # bytes, FLOP/s: a million times the largest there is
_LEAST = 1e-3
_STEM = re.compile(r"[^/\\\x00-\x1f]{1,80}")


def problems(cluster: object, where: str = "") -> tuple[Problem, ...]:
    """Returns every mistake of ``cluster``. Empty: it can be projected on."""
    wrong = of_type(cluster, Cluster, where, "cluster.")
    if wrong or not isinstance(cluster, Cluster):
        return tuple(wrong)
    found = _sizes(cluster, where, "cluster.")
    found += gpu_problems(cluster.gpu, where, "cluster.gpu.")
    for name in ("intra", "inter", "outer"):
        fabric: Fabric | None = getattr(cluster, name)
        if fabric is not None:
            found += _sizes(fabric, where, f"cluster.{name}.")
            if fabric.topology not in TOPOLOGIES:
                expected = f"one of {', '.join(TOPOLOGIES)}"
                found.append(Problem(where, f"cluster.{name}.topology", fabric.topology, expected))
    if not found and cluster.gpus_per_node % cluster.gpus_per_host:
        expected = f"a divisor of gpus_per_node = {cluster.gpus_per_node}"
        found.append(Problem(where, "cluster.gpus_per_host", cluster.gpus_per_host, expected))
    return tuple(found)


def gpu_problems(gpu: object, where: str = "", prefix: str = "gpu.") -> list[Problem]:
    """Returns every mistake of a device."""
    wrong = of_type(gpu, Gpu, where, prefix)
    if wrong or not isinstance(gpu, Gpu):
        return wrong
    found = _sizes(gpu, where, prefix)
    for name in ("name", "vendor", "arch"):  # they find the files of their efficiency parameters and kernel tables
        if not _STEM.fullmatch(getattr(gpu, name)):
            found.append(Problem(where, prefix + name, getattr(gpu, name), "a short name without a slash"))
    for name in ("peak", "flops_per_clock"):
        expected = f"a number from {_LEAST:g} to {_MOST:g}"
        rates: Mapping[str, float] = getattr(gpu, name)
        found += [
            Problem(where, f"{prefix}{name}.{k}", v, expected) for k, v in rates.items() if not _LEAST <= v <= _MOST
        ]
    return found


def _sizes(item: object, where: str, prefix: str) -> list[Problem]:
    found = []
    expected = f"a number from {_LEAST:g} to {_MOST:g}"
    for name, each in stated_of(type(item)).items():
        value = getattr(item, name)
        if type(value) not in (int, float) or _LEAST <= value <= _MOST:
            continue
        if each.least > 0 or value < 0 or value > _LEAST:  # of a latency or a cache there may be less
            found.append(Problem(where, prefix + name, value, expected))
    return found
