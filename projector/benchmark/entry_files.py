"""Writes a probed device in the catalogue's own formats: the device, its efficiency parameters, a cluster of one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from projector.benchmark.entry import Entry
from projector.benchmark.fabric import Joined
from projector.hardware.types import Gpu
from projector.hardware.yaml_file import written
from projector.io.files import write_whole, writing
from projector.parameter import Parameter

#: assumed: the fabric of a cluster of one device, which no single device can measure (catalogue entry of the CPU).
_FABRIC_GBS, _FABRIC_US = 10.0, 5.0
_NETWORK_GBS, _NETWORK_US = 1.25, 30.0

Written = tuple[Path, ...]


def write(entry: Entry, folder: Path, software: str, joined: Joined | None = None) -> Written:
    """Writes ``<name>.yaml``, ``<name>.efficiency.yaml`` and ``<name>.cluster.yaml``. Raises :class:`InputError`.

    ``joined``: the fabric between the devices of this host, where it was measured.
    """
    name = entry.gpu.name
    parameters = {**entry.parameters, **(joined.parameters if joined else {})}
    files = {
        f"{name}.yaml": _device(entry, software),
        f"{name}.efficiency.yaml": {"parameters": {key: _cell(each) for key, each in parameters.items()}},
        f"{name}.cluster.yaml": _cluster(entry.gpu, joined),
    }
    return tuple(_save(folder / file, content, software) for file, content in files.items())


def _device(entry: Entry, software: str) -> dict[str, Any]:
    gpu = entry.gpu
    return {
        **written(gpu, 6),
        "efficiency": f"{gpu.name}.efficiency.yaml",
        "notes": f"Probed: {software}",
        "sources": [{"title": each.source, "kind": each.kind, "values": [key]} for key, each in entry.origins.items()],
    }


def _cluster(gpu: Gpu, joined: Joined | None) -> dict[str, Any]:
    intra: Mapping[str, Any] = {
        "name": "inside the host",
        "topology": "switch",
        "size": joined.ranks if joined else 1,
        "bandwidth_gbs": _six_digits(joined.bandwidth / 1e9) if joined else _FABRIC_GBS,
        "latency_us": _six_digits(joined.latency * 1e6) if joined else _FABRIC_US,
    }
    inter = {
        "name": "network",
        "topology": "switch",
        "bandwidth_gbs": _NETWORK_GBS,
        "latency_us": _NETWORK_US,
        "nics_per_node": 1,
    }
    ranks = joined.ranks if joined else 1
    return {
        "name": gpu.name,
        "title": f"One {gpu.title}" if ranks == 1 else f"{ranks} x {gpu.title}",
        "gpu": f"{gpu.name}.yaml",
        "gpus_per_node": ranks,
        "gpus_per_host": ranks,
        "intra": dict(intra),
        "inter": inter,
        "sources": _fabric_sources(joined),
    }


def _fabric_sources(joined: Joined | None) -> list[dict[str, Any]]:
    inner, outer = (["intra.bandwidth_gbs", "intra.latency_us"], ["inter.bandwidth_gbs", "inter.latency_us"])
    assumed = {"kind": "assumed", "title": "one host measures no network: to be replaced"}
    if joined is None:
        return [{**assumed, "values": [*inner, *outer]}]
    how = f"{joined.times} collectives of {joined.ranks} ranks here; the models with these figures: {joined.error:.0%} off"
    return [{"title": how, "kind": "measured", "values": inner}, {**assumed, "values": outer}]


def _cell(parameter: Parameter) -> dict[str, Any]:
    cell: dict[str, Any] = {"value": _six_digits(parameter.value), "kind": parameter.kind, "source": parameter.source}
    for key, value in (("low", parameter.low), ("high", parameter.high)):
        if value is not None:
            cell[key] = _six_digits(value)
    return cell


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")  # more than any of these figures has


def _save(path: Path, content: Mapping[str, Any], software: str) -> Path:
    import yaml

    text = f"# Made by `python -m projector probe`; {software}\n"
    text += yaml.safe_dump(dict(content), sort_keys=False, width=120, allow_unicode=True, default_flow_style=None)
    with writing(path, "--out", "a folder to write to"):
        write_whole(path, text)
    return path
