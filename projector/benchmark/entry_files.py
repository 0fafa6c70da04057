"""Writes a probed device in the catalogue's own formats: the device, its efficiency parameters, a cluster of one."""

from __future__ import annotations

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
    import yaml

    name = entry.gpu.name
    parameters = {**entry.parameters, **(joined.parameters if joined else {})}
    files = {
        f"{name}.yaml": _device(entry, software),
        f"{name}.efficiency.yaml": {"parameters": {key: _cell(each) for key, each in parameters.items()}},
        f"{name}.cluster.yaml": _cluster(entry.gpu, joined),
    }
    for file, content in files.items():
        text = yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True, default_flow_style=None)
        with writing(folder / file, "--out", "a folder to write to"):
            write_whole(folder / file, f"# Made by `python -m projector probe`; {software}\n{text}")
    return tuple(folder / file for file in files)


def _device(entry: Entry, software: str) -> dict[str, Any]:
    gpu = entry.gpu
    return {
        **written(gpu, 6),
        "efficiency": f"{gpu.name}.efficiency.yaml",
        "notes": f"Probed: {software}",
        "sources": [{"title": each.source, "kind": each.kind, "values": [key]} for key, each in entry.origins.items()],
    }


def _cluster(gpu: Gpu, joined: Joined | None) -> dict[str, Any]:
    ranks = joined.ranks if joined else 1
    rate, latency = (joined.bandwidth / 1e9, joined.latency * 1e6) if joined else (_FABRIC_GBS, _FABRIC_US)
    inner = {"bandwidth_gbs": _six_digits(rate), "latency_us": _six_digits(latency)}
    outer = {"bandwidth_gbs": _NETWORK_GBS, "latency_us": _NETWORK_US, "nics_per_node": 1}
    return {
        "name": gpu.name,
        "title": f"One {gpu.title}" if ranks == 1 else f"{ranks} x {gpu.title}",
        "gpu": f"{gpu.name}.yaml",
        "gpus_per_node": ranks,
        "gpus_per_host": ranks,
        "intra": {"name": "inside the host", "topology": "switch", "size": ranks, **inner},
        "inter": {"name": "network", "topology": "switch", **outer},
        "sources": _fabric_sources(joined),
    }


def _fabric_sources(joined: Joined | None) -> list[dict[str, Any]]:
    inner, outer = ([f"{level}.bandwidth_gbs", f"{level}.latency_us"] for level in ("intra", "inter"))
    assumed = {"kind": "assumed", "title": "one host measures no network: to be replaced"}
    if joined is None:
        return [{**assumed, "values": [*inner, *outer]}]
    how = f"{joined.times} collectives of {joined.ranks} ranks here; the models with these figures: {joined.error:.0%} off"
    return [{"title": how, "kind": "measured", "values": inner}, {**assumed, "values": outer}]


def _cell(parameter: Parameter) -> dict[str, Any]:
    cell: dict[str, Any] = {"value": _six_digits(parameter.value), "kind": parameter.kind, "source": parameter.source}
    ends = {"low": parameter.low, "high": parameter.high}
    return cell | {key: _six_digits(value) for key, value in ends.items() if value is not None}


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")  # more than any of these figures has
