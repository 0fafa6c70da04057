"""Machines that clouds rent, by the names that scripts and manifests call them: ``p5.48xlarge``, ``ND96isr_H100_v5``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from projector.hardware.types import Cluster
from projector.io.files import read_yaml

_FILE = Path(__file__).with_name("machines.yaml")
_BYTES = 1e9 / 8  # of a Gbit
_WRITTEN = {"infiniband": "InfiniBand", "roce": "RoCE", "efa": "EFA", "tcp": "TCP"}


@functools.cache
def _table() -> tuple[dict[str, Any], ...]:
    return tuple(read_yaml(_FILE))


@functools.cache
def _by_name(key: str) -> dict[str, dict[str, Any]]:
    """Entries by their ``names``, or by their label ``gke``."""
    given = ((entry, entry.get(key, [])) for entry in _table())
    return {_plain(name): entry for entry, names in given for name in ([names] if isinstance(names, str) else names)}


def _plain(name: str) -> str:
    return name.lower().removeprefix("standard_").removeprefix("ml.").replace("-", "_")


def machine_names() -> tuple[str, ...]:
    """One name of each machine, in alphabetical order."""
    return tuple(sorted(entry["names"][0] for entry in _table()))


def machine_of(text: str, key: str = "names") -> str | None:
    """The machine that ``text`` names (``key``: ``names``, or ``gke`` for a label of Google's Kubernetes), or None. Case,
    dashes, Azure's ``Standard_`` and SageMaker's ``ml.`` do not matter."""
    found = _by_name(key).get(_plain(text))
    return None if found is None else str(found["names"][0])


def rented(name: str, known: Callable[[str], Cluster]) -> Cluster | None:
    """The cluster of machines of a name, or None; ``known`` gives clusters of the catalogue."""
    entry = _by_name("names").get(_plain(name))
    if entry is None:
        return None
    base, network = known(entry["cluster"]), entry.get("network")
    if network is None:
        return base
    of_host = network["gbits"] * _BYTES / base.gpus_per_host
    inter = replace(
        base.inter,
        name=f"{_WRITTEN[network['technology']]}, {network['gbits']} Gbit/s a host",
        technology="" if network["technology"] == "infiniband" else network["technology"],
        bandwidth=of_host,
        nics_per_node=network["nics"] * base.gpus_per_node // base.gpus_per_host,
        latency=known(network["latency_as"]).inter.latency if "latency_as" in network else base.inter.latency,
    )
    return replace(base, name=entry["names"][0], inter=inter, sources=(*base.sources, f"inter: {entry['source']}"))
