"""A cluster as the text of a file that :mod:`projector.hardware.cluster_file` reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from projector.hardware.cluster_file import SHARES
from projector.hardware.types import Cluster
from projector.hardware.yaml_file import written


def text(cluster: Cluster, gpu: str, like: str, measured: Sequence[tuple[str, str]]) -> str:
    """``gpu``: how the file names its GPU; ``like``: where its lines come from; ``measured``: (share, how) of what was."""
    levels = {"intra": cluster.intra, "inter": cluster.inter} | ({"outer": cluster.outer} if cluster.outer else {})
    shares = {name: float(f"{value:.6g}") for name, value in cluster.overrides.items() if name in SHARES}
    told = {f"collectives.{name}": how for name, how in measured}
    stated = [f"{level}.{key}" for level in levels for key in ("bandwidth_gbs", "latency_us")]
    stated += [f"collectives.{name}" for name in shares if f"collectives.{name}" not in told]
    content: dict[str, Any] = {
        **written(cluster, 9),
        "gpu": gpu,
        **{level: written(fabric, 9) for level, fabric in levels.items()},
        "collectives": shares,
        "sources": [
            {"title": f"as {like}", "kind": "derived", "values": stated},
            *({"title": how, "kind": "measured", "values": [key]} for key, how in told.items()),
        ],
    }
    return yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True, default_flow_style=None)
