"""A cluster as the text of a file that :mod:`projector.hardware.cluster_file` reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from projector.hardware.cluster_file import ANY_SIZE, SHARES
from projector.hardware.types import Cluster, Fabric


def text(cluster: Cluster, gpu: str, like: str, measured: Sequence[tuple[str, str]]) -> str:
    """``gpu``: how the file names its GPU; ``like``: where its lines come from; ``measured``: (share, how) of what was."""
    levels = {"intra": cluster.intra, "inter": cluster.inter} | ({"outer": cluster.outer} if cluster.outer else {})
    shares = {name: float(f"{value:.6g}") for name, value in cluster.overrides.items() if name in SHARES}
    told = {f"collectives.{name}": how for name, how in measured}
    stated = [f"{level}.{key}" for level in levels for key in ("bandwidth_gbs", "latency_us")]
    stated += [f"collectives.{name}" for name in shares if f"collectives.{name}" not in told]
    content: dict[str, Any] = {
        "name": cluster.name,
        "gpu": gpu,
        "gpus_per_node": cluster.gpus_per_node,
        "gpus_per_host": cluster.gpus_per_host,
        **{level: _fabric(fabric) for level, fabric in levels.items()},
        **_stated(
            host=cluster.processor,
            host_link_gbs=_giga(cluster.host_link),
            host_memory_gbs=_giga(cluster.host_memory),
            host_memory_gib=cluster.host_capacity and cluster.host_capacity / 2.0**30,
        ),
        "collectives": shares,
        "sources": [
            {"title": f"as {like}", "kind": "derived", "values": stated},
            *({"title": how, "kind": "measured", "values": [key]} for key, how in told.items()),
        ],
    }
    return yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True, default_flow_style=None)


def _fabric(fabric: Fabric) -> dict[str, Any]:
    return {
        "name": fabric.name,
        "topology": fabric.topology,
        **({} if fabric.size == ANY_SIZE else {"size": fabric.size}),
        "bandwidth_gbs": _giga(fabric.bandwidth),
        "latency_us": float(f"{fabric.latency * 1e6:.9g}"),
        **_stated(nics_per_node=fabric.nics_per_node, technology=fabric.technology or None),
        **({} if fabric.path == Fabric.path else {"path": fabric.path}),
        **({"in_switch_reduction": True} if fabric.in_switch_reduction else {}),
    }


def _giga(value: float | None) -> float | None:
    return None if value is None else float(f"{value / 1e9:.9g}")


def _stated(**values: object) -> dict[str, object]:
    return {key: value for key, value in values.items() if value is not None}
