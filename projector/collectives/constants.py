"""Constants of the collective model: library, architecture or fabric, a GPU's efficiency file, a user's cluster."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from projector.errors import InputError, Problem
from projector.hardware.types import Cluster, Efficiency, Parameter

__all__ = ["Constants", "constants", "sections"]

_LIBRARY = {"nvidia": "nccl", "amd": "rccl", "cpu": "nccl"}
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
        """The constant, or ``default`` where nothing states it. Raises KeyError when ``default`` is None."""
        if name in self._overrides:
            return self._overrides[name]
        found = self._efficiency.parameters.get(name) if self._efficiency is not None else None
        found = found or self._values.get(name)
        if found is not None:
            return found.value
        if default is None:
            raise KeyError(name)
        return default

    def states(self, name: str) -> bool:
        """Whether the user's cluster states this constant."""
        return name in self._overrides

    def share(self, name: str) -> float:
        """A share of a link rate: never more than all of it, so that no time falls below the bandwidth bound."""
        return min(1.0, self[name])


def constants(cluster: Cluster, efficiency: Efficiency | None = None) -> Constants:
    """Constants that hold on ``cluster``; a parameter of ``efficiency`` with the same name wins over the
    shipped value, and one of ``cluster.overrides`` over both."""
    arch = _ARCHITECTURE.get(cluster.gpu.arch, cluster.gpu.arch)
    values = _merged(_LIBRARY.get(cluster.gpu.vendor, "nccl"), arch, cluster.intra.topology)
    return Constants(values, efficiency, cluster.overrides)


@functools.cache
def _merged(library: str, arch: str, topology: str) -> Mapping[str, Parameter]:
    known = sections()
    return {**known[library], **known.get(arch, {}), **known.get(topology, {})}


@functools.cache
def sections() -> Mapping[str, Mapping[str, Parameter]]:
    """Every section of ``constants.yaml``. Raises InputError when an entry is not {value, kind, source}."""
    import yaml

    path = Path(__file__).with_name("constants.yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    problems: list[Problem] = []
    found: dict[str, dict[str, Parameter]] = {}
    for section, entries in yaml.load(path.read_text(encoding="utf-8"), Loader=loader).items():
        for name, entry in entries.items():
            try:
                found.setdefault(section, {})[name] = Parameter(**entry)
            except TypeError:
                problems.append(Problem(str(path), f"{section}.{name}", entry, "{value, kind, source}"))
    if problems:
        raise InputError(problems)
    return found
