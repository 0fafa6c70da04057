"""Constants of the collective model, from library, architecture or fabric, a GPU's efficiency file, a user's cluster."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from projector.errors import Problem, raise_all
from projector.hardware.types import Cluster, Efficiency
from projector.io.documents import parse_yaml
from projector.parameter import Parameter, read

LIBRARY = {"nvidia": "nccl", "amd": "rccl", "cpu": "nccl"}
_ARCHITECTURE = {"blackwell_ultra": "blackwell"}


class Constants:
    """Look-up of one cluster's constants by name, such as ``link.intra`` or ``base_us.ring.ll``."""

    __slots__ = ("_efficiency", "_overrides", "_values")

    def __init__(
        self, values: Mapping[str, Parameter], efficiency: Efficiency | None, overrides: Mapping[str, float]
    ) -> None:
        self._values = values
        self._efficiency = efficiency
        self._overrides = overrides

    def __getitem__(self, name: str) -> float:
        return self.get(name, None)

    def get(self, name: str, default: float | None) -> float:
        """Returns the constant, or ``default`` where nothing states it. Raises KeyError when ``default`` is None."""
        if name in self._overrides:
            return self._overrides[name]
        stated = self._efficiency.parameters.get(name) if self._efficiency is not None else None
        stated = self._values.get(name) if stated is None else stated
        if stated is not None:
            return stated.value
        if default is None:
            raise KeyError(name)
        return default

    def states(self, name: str) -> bool:
        """Returns whether the user's cluster states this constant."""
        return name in self._overrides

    def share(self, name: str) -> float:
        """Returns a share of a link rate, at most 1, so that no time falls below the bandwidth bound."""
        return min(1.0, self[name])


def constants(cluster: Cluster, efficiency: Efficiency | None = None) -> Constants:
    """Returns the constants that hold on ``cluster``; a parameter of ``efficiency`` with the same name wins over the
    shipped value, and one of ``cluster.overrides`` over both."""
    between = cluster.inter.technology
    values = _merged(LIBRARY.get(cluster.gpu.vendor, "nccl"), architecture(cluster), cluster.intra.topology, between)
    return Constants(values, efficiency, cluster.overrides)


def architecture(cluster: Cluster) -> str:
    """Returns the section of ``constants.yaml`` for the architecture of the cluster's devices."""
    return _ARCHITECTURE.get(cluster.gpu.arch, cluster.gpu.arch)


def _merged(library: str, *parts: str) -> Mapping[str, Parameter]:
    """Returns the constants of a library with the changes of an architecture, a topology and a network."""
    by_section = sections()
    return {name: value for part in (library, *parts) for name, value in by_section.get(part, {}).items()}


@functools.cache
def sections() -> Mapping[str, Mapping[str, Parameter]]:
    """Returns every section of ``constants.yaml``. Raises InputError with every mistake."""
    path = Path(__file__).with_name("constants.yaml")
    problems: list[Problem] = []
    read_sections = {
        section: {name: read(entry, str(path), f"{section}.{name}", problems) for name, entry in entries.items()}
        for section, entries in parse_yaml(path.read_text(encoding="utf-8"), str(path)).items()
    }
    raise_all(problems)
    return read_sections
