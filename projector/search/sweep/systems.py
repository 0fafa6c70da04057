"""The systems of a sweep: names of the catalogue, files of the user, and what of them is larger or smaller."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from projector.errors import InputError, Problem
from projector.hardware import catalogue, own
from projector.hardware.scaled import SCALES
from projector.hardware.types import Cluster


@lru_cache(maxsize=64)
def system(name: str) -> Cluster:
    """A cluster or GPU of the catalogue, or a YAML file of either. Raises :class:`InputError`."""
    if catalogue.is_path(name):
        return catalogue.cluster(name) if own.is_cluster(name) else own.around(name).cluster
    if catalogue.knows_cluster(name):
        return catalogue.cluster(name)
    found = catalogue.find_gpu(name)
    if found is None:
        raise InputError(
            [Problem("", "system", name, "a GPU or cluster of the catalogue (projector gpus), or a YAML file")]
        )
    return catalogue.default_cluster(found)


@lru_cache(maxsize=4096)
def scaled(name: str, factors: tuple[tuple[str, Any], ...]) -> Cluster:
    """``system(name)`` with factors of :data:`SCALES`; one object for one answer, so that what is remembered of it stays."""
    cluster = system(name)
    for word, factor in factors:
        for each in word.split("+") if factor != 1 else ():
            cluster = SCALES[each](cluster, float(factor))
    return cluster
