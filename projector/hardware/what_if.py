"""A cluster of which a user states other figures: ``gpu.memory_bandwidth_tbs=4``, in the words of its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from projector.errors import InputError, Problem
from projector.hardware import catalogue
from projector.hardware.cluster_file import read_cluster
from projector.hardware.gpu_file import read_gpu
from projector.hardware.types import Cluster

_CHANGED = ("intra", "inter", "outer", "host_link", "host_memory", "host_capacity", "processor", "overrides")


def changed(cluster: Cluster, stated: Mapping[str, object], where: str) -> Cluster:
    """``cluster`` with other figures of its GPU (``gpu.KEY``) and its fabrics (``cluster.inter.KEY``); a KEY is that of a
    file of hardware or in SI units. ``where``: who states them. Raises :class:`InputError` with every mistake, and for
    hardware that is not of the catalogue: its own file says it."""
    problems: list[Problem] = []
    for kind, name, known in (
        ("gpu", cluster.gpu.name, catalogue.gpu_names()),
        ("cluster", cluster.name, catalogue.cluster_names()),
    ):
        own = _nested({key.split(".", 1)[1]: value for key, value in stated.items() if key.startswith(f"{kind}.")})
        if not own:
            continue
        if name not in known:
            problems.append(
                Problem(where, f"{kind}.{next(iter(own))}", name, f"a {kind} of the catalogue; a file states it")
            )
            continue
        try:
            cluster = _with_gpu(cluster, own) if kind == "gpu" else _with_fabrics(cluster, own)
        except InputError as error:
            problems += [replace(problem, where=where, key=f"{kind}.{problem.key}") for problem in error.problems]
    if problems:
        raise InputError(problems)
    return cluster


def _with_gpu(cluster: Cluster, own: Mapping[str, Any]) -> Cluster:
    return replace(cluster, gpu=read_gpu(catalogue.FOLDER / "gpus" / f"{cluster.gpu.name}.yaml", own).gpu)


def _with_fabrics(cluster: Cluster, own: Mapping[str, Any]) -> Cluster:
    """What ``own`` changes of the catalogue's cluster, on one whose hosts may have been resized."""
    file = catalogue.FOLDER / "clusters" / f"{cluster.name}.yaml"
    before, after = (read_cluster(file, catalogue.gpu, each) for each in ({}, own))
    made = {name: getattr(after, name) for name in _CHANGED if getattr(after, name) != getattr(before, name)}
    if "intra" in made:
        made["intra"] = replace(made["intra"], size=cluster.intra.size)
    if not made:
        raise InputError(
            [Problem("", next(iter(own)), next(iter(own.values())), f"another value: one of {', '.join(_CHANGED)}")]
        )
    return replace(cluster, **made, sources=after.sources)


def _nested(stated: Mapping[str, object]) -> dict[str, Any]:
    """``inter.bandwidth_gbs`` as mappings."""
    made: dict[str, Any] = {}
    for path, value in stated.items():
        *outer, last = path.split(".")
        place = made
        for word in outer:
            inside = place.setdefault(word, {})
            place = inside if isinstance(inside, dict) else {}  # stated as a whole, too: the checks refuse that
        place[last] = value
    return made
