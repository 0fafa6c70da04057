"""The systems of a sweep: names of the catalogue, files of the user, and what of them is larger or smaller."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from projector.hardware import catalogue
from projector.hardware.scaled import SCALES
from projector.hardware.types import Cluster


@lru_cache(maxsize=64)
def system(name: str) -> Cluster:
    """A cluster or GPU of the catalogue, or a YAML file of either. Raises :class:`InputError`."""
    return catalogue.cluster(name)


@lru_cache(maxsize=4096)
def scaled(name: str, factors: tuple[tuple[str, Any], ...]) -> Cluster:
    """``system(name)`` with factors of :data:`SCALES`; one object for one answer, so that what is remembered of it stays."""
    cluster = system(name)
    for word, factor in factors:
        for each in word.split("+") if factor != 1 else ():
            cluster = SCALES[each](cluster, float(factor))
    return cluster
