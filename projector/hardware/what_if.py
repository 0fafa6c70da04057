"""Changes figures of a cluster that a user states: ``gpu.memory_bandwidth_tbs=4``, in the words of its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from projector.errors import InputError, Problem, raise_all
from projector.hardware import catalogue
from projector.hardware.cluster_file import read_cluster
from projector.hardware.gpu_file import read_gpu
from projector.hardware.types import Cluster

_CHANGED = ("intra", "inter", "outer", "host_link", "host_memory", "host_capacity", "processor", "overrides")


def changed(cluster: Cluster, stated: Mapping[str, object], where: str) -> Cluster:
    """Returns ``cluster`` with other figures of its GPU (``gpu.KEY``) and its fabrics (``cluster.inter.KEY``); a KEY is
    that of a file of hardware or in SI units. ``where``: who states them. Raises :class:`InputError` with every
    mistake, and for hardware that is not of the catalogue, whose own file states its figures."""
    problems: list[Problem] = []
    for kind, name, known in (
        ("gpu", cluster.gpu.name, catalogue.gpu_names()),
        ("cluster", cluster.name, catalogue.cluster_names()),
    ):
        figures = _nested({key.split(".", 1)[1]: value for key, value in stated.items() if key.startswith(f"{kind}.")})
        if not figures:
            continue
        if name not in known:
            expected = f"a {kind} of the catalogue; a file states it"
            problems.append(Problem(where, f"{kind}.{next(iter(figures))}", name, expected))
            continue
        try:
            if kind == "gpu":
                cluster = replace(cluster, gpu=read_gpu(catalogue.FOLDER / "gpus" / f"{name}.yaml", figures))
            else:
                cluster = _with_fabrics(cluster, figures)
        except InputError as error:
            problems += [replace(problem, where=where, key=f"{kind}.{problem.key}") for problem in error.problems]
    raise_all(problems)
    return cluster


def _with_fabrics(cluster: Cluster, figures: Mapping[str, Any]) -> Cluster:
    """Returns ``cluster``, whose hosts may have been resized, with ``figures`` in place of the catalogue's."""
    file = catalogue.FOLDER / "clusters" / f"{cluster.name}.yaml"
    before, after = (read_cluster(file, catalogue.gpu, each) for each in ({}, figures))
    other = {each.name for each in fields(Cluster) if getattr(after, each.name) != getattr(before, each.name)}
    changes = {name: getattr(after, name) for name in _CHANGED if name in other}
    fixed = [(name, value) for name, value in figures.items() if name in other - {*_CHANGED, "sources"}]
    fixed += [("intra.size", after.intra.size)] if after.intra.size != before.intra.size else []
    expected = f"a file of the cluster for it; --set changes {', '.join(_CHANGED)}"
    raise_all([Problem("", name, value, expected) for name, value in fixed])
    if "intra" in changes:
        changes["intra"] = replace(changes["intra"], size=cluster.intra.size)
    return replace(cluster, **changes, sources=after.sources)


def _nested(stated: Mapping[str, object]) -> dict[str, Any]:
    """Returns keys such as ``inter.bandwidth_gbs`` as nested mappings."""
    nested: dict[str, Any] = {}
    for path, value in stated.items():
        *outer, last = path.split(".")
        place = nested
        for word in outer:
            inside = place.setdefault(word, {})
            place = inside if isinstance(inside, dict) else {}  # stated as a whole, too: the checks refuse that
        place[last] = value
    return nested
