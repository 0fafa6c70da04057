"""Reads hardware that a user describes in a file: where it lies, what it describes, the cluster of a GPU alone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.hardware import tpe_file
from projector.hardware.gpu_file import read_gpu
from projector.hardware.types import Cluster
from projector.hardware.yaml_file import SUFFIXES, read_described


@dataclass(frozen=True)
class UserCluster:
    """A GPU in a cluster whose ``taken`` part is that of ``like``; ``stated``: a file of the user says so."""

    cluster: Cluster
    like: str
    stated: bool
    taken: str = "fabric and hosts"


def is_cluster(path: str) -> bool:
    """Returns whether the file describes a cluster (it names a GPU) rather than a GPU. Raises :class:`InputError`."""
    return "gpu" in read_described(Path(path))


def is_gpu(path: str) -> bool:
    """Returns whether the file describes a GPU and nothing around it. Raises :class:`InputError`."""
    return not is_cluster(path) and not tpe_file.is_tpe(read_described(Path(path)))


def beside(name: str, file: str | Path) -> str:
    """Returns ``name`` as ``file`` means it: a path from the folder of the file, where something lies there."""
    if not name.endswith(SUFFIXES):
        return name
    placed = Path(os.path.normpath(Path(file).parent / name))
    return str(placed) if placed.is_file() else name


def cluster_around(path: str) -> UserCluster:
    """Returns the cluster of the GPU in the YAML file ``path``, or of a system of transformer-perf-estimates (JSON).

    ``clusters/<file>`` beside its folder describes it where there is one (as ``projector probe`` writes them). Else it
    takes the place of the catalogue's GPU that is its base or has its name, of its architecture (the one with the nearest
    bandwidth to its memory) or of its vendor. Raises :class:`InputError` for a file that is wrong, and where there is no
    such GPU.
    """
    from projector.hardware import catalogue

    file = Path(path)
    mapping = read_described(file)
    if tpe_file.is_tpe(mapping):
        described_cluster, name = tpe_file.cluster(mapping, path, file.stem)
        return UserCluster(described_cluster, name, stated=False, taken="clocks, caches, kernels and hosts")
    gpu = read_gpu(file)
    beside = file.parent.parent / "clusters" / file.name
    if beside.is_file():
        return UserCluster(catalogue.cluster(str(beside)), beside.name, stated=True)
    known = [catalogue.gpu(name) for name in catalogue.gpu_names() if name in catalogue.cluster_names()]
    wanted = {"name": gpu.base or gpu.name, "arch": gpu.arch, "vendor": gpu.vendor}
    relatives = ([each for each in known if getattr(each, key) == value] for key, value in wanted.items())
    nearest = next(filter(None, relatives), None)
    if nearest is None:
        expected = "a vendor or an architecture of the catalogue, or --cluster FILE that describes its hosts"
        raise InputError([Problem(path, "arch", gpu.arch, expected)])
    like = min(nearest, key=lambda each: abs(each.memory_bandwidth / gpu.memory_bandwidth - 1.0))
    usual = catalogue.default_cluster(like.name)
    return UserCluster(replace(usual, gpu=gpu, name=f"{usual.name} with {gpu.name}"), usual.name, stated=False)
