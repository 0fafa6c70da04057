"""Finds GPUs and clusters by name: in the files of ``gpus/`` and ``clusters/``, by alias, or in a file of a user."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from projector.errors import InputError, Problem, nearest
from projector.hardware import user_files
from projector.hardware.cluster_file import read_cluster
from projector.hardware.gpu_file import read_gpu
from projector.hardware.types import Cluster, Gpu
from projector.hardware.yaml_file import SUFFIXES
from projector.io.files import listed_in, read_yaml
from projector.parameter import parameter

FOLDER = Path(__file__).parent
_NO_NAME = re.compile(
    r"^\d+\s*x\s*(?=[a-z])|\s+x\s*\d+$|(?<=\d)x\d+$"
    r"|\b(nvidia|amd|instinct|tesla|gpus?|accelerator|tensor\s+core|blackwell|hopper|ampere|ultra|oam|hbm\d?e?|vf|ac|[dh]gx|geforce|gcd)\b"
)
_MEMORY = re.compile(r"\b(\d+)[\s_-]*(?:g|gb|gib)\b")
_FORM = re.compile(r"\b(sxm|pcie|nvl)[2456]?\b")
_MEMORY_APART = parameter(
    0.01,
    kind="assumed",
    source="sizes are sold in whole GB, binary or decimal: 180 GiB as 192 GB; two GPUs of one chip lie further apart",
)


@functools.cache
def gpu_names() -> tuple[str, ...]:
    """Returns the catalogue's GPU names in alphabetical order."""
    return tuple(sorted(path.stem for path in (FOLDER / "gpus").glob("*.yaml")))


@functools.cache
def cluster_names() -> tuple[str, ...]:
    """Returns the catalogue's cluster names in alphabetical order; a GPU's default cluster bears its name."""
    return tuple(sorted(path.stem for path in (FOLDER / "clusters").glob("*.yaml")))


def gpu(name: str) -> Gpu:
    """Returns the GPU of a catalogue name, an alias or a YAML file (of it, or of its cluster). Raises InputError with
    the nearest names."""
    if is_path(name):
        return read_gpu(Path(name)) if user_files.is_gpu(name) else cluster(name).gpu
    known_name = find_gpu(name)
    if known_name is None:
        raise InputError([Problem("gpu", "", name, nearest(name, gpu_names()))])
    return _gpu_file(known_name)


def find_gpu(text: str) -> str | None:
    """Returns the catalogue name meant by free text such as ``NVIDIA Blackwell GPU (B200-SXM-180GB)``, or None.

    Vendor words, memory types, a count in front or behind, what a driver adds (a virtual function ``VF``, air cooling
    ``AC``), case and separators do not matter, nor the order in which chip, form and memory are said; words in parentheses
    are tried alone as well. The path of a file that describes a GPU names that one.
    """
    if text in gpu_names() or (is_path(text) and Path(text).is_file()):
        return text
    known = _aliases()
    for candidate in (text, *re.findall(r"\(([^)]*)\)", text)):
        key = _stripped(candidate)
        if key in known:
            return known[key]
        if key and (described := _described(candidate)):
            return described
    return None


def _described(text: str) -> str | None:
    """Returns the GPU whose chip, form (SXM where a name of the catalogue says none) and memory ``text`` states, and
    states nothing else; where it leaves one open, the usual GPU of that chip."""
    plain = _NO_NAME.sub(" ", text.lower().replace("_", " "))
    memory, (chip, form) = _MEMORY.search(plain), _chip_and_form(plain)
    alike = [name for name, of, its in _chips() if of == chip and form in ("", its)]
    if memory:  # what is called so many GB
        sizes = [float(memory[1]) * unit for unit in (2.0**30, 1e9)]
        alike = [name for name in alike if any(abs(s / gpu(name).memory_bytes - 1.0) < _MEMORY_APART for s in sizes)]
    usual = [_aliases().get(chip + form), _aliases().get(chip)]
    return next((name for name in usual if name in alike), alike[0] if len(alike) == 1 else None)


@functools.cache
def _chips() -> tuple[tuple[str, str, str], ...]:
    """Returns name, chip and form of every GPU of the catalogue."""
    parts = ((name, *_chip_and_form(name.replace("_", " "))) for name in gpu_names())
    return tuple((name, chip, form or "sxm") for name, chip, form in parts)


def _chip_and_form(words: str) -> tuple[str, str]:
    """Returns the chip that ``words`` name, without memory and form, and its form; empty where they say none."""
    form = _FORM.search(words)
    return _stripped(_FORM.sub(" ", _MEMORY.sub(" ", words))), form[1] if form else ""


def cluster(name: str) -> Cluster:
    """Returns the cluster of a catalogue name, a machine that a cloud rents, a GPU alias (its default cluster) or a
    YAML file (of it, or of a GPU alone). Raises InputError."""
    if is_path(name):
        return read_cluster(Path(name), gpu) if user_files.is_cluster(name) else user_files.cluster_around(name).cluster
    if name in cluster_names():
        return _cluster_file(name)
    if machine_of(name):
        return _rented(name)
    gpu_name = find_gpu(name)
    if gpu_name is None:
        raise InputError([Problem("cluster", "", name, nearest(name, (*cluster_names(), *machine_names())))])
    return default_cluster(gpu_name)


def default_cluster(gpu_name: str, gpus_per_node: int | None = None) -> Cluster:
    """Returns the usual system of a GPU, with ``gpus_per_node`` GPUs in a host where that is stated.

    In an NVLink domain of several hosts (NVL72) the host changes, the domain stays. Elsewhere the node shrinks to the
    GPUs that are used; the fabric keeps its size, since a mesh link stays one of seven. Raises InputError.
    """
    if is_path(gpu_name):
        base = cluster(gpu_name)
    else:
        chip = gpu(gpu_name)
        if chip.name not in cluster_names():
            expected = "a GPU of the catalogue, or a cluster file that names it"
            raise InputError([Problem("cluster", "gpu", gpu_name, expected)])
        base = replace(_cluster_file(chip.name), gpu=chip)
    return base if gpus_per_node in (None, base.gpus_per_host) else _resized(base, gpus_per_node)


def _resized(base: Cluster, gpus_per_node: int) -> Cluster:
    if gpus_per_node < 1:
        raise InputError([Problem("cluster", "gpus_per_node", gpus_per_node, "at least 1")])
    if base.gpus_per_node > base.gpus_per_host:
        domain = base.gpus_per_node
        if gpus_per_node > domain:
            raise InputError([Problem("cluster", "gpus_per_node", gpus_per_node, f"at most the domain of {domain}")])
        return replace(base, gpus_per_host=gpus_per_node)
    fabric = base.intra
    if gpus_per_node > fabric.size:
        if fabric.topology == "mesh":
            raise InputError([Problem("cluster", "gpus_per_node", gpus_per_node, f"at most {fabric.size} of a mesh")])
        fabric = replace(fabric, size=gpus_per_node)
    return replace(base, gpus_per_node=gpus_per_node, gpus_per_host=gpus_per_node, intra=fabric)


def knows_gpu(name: str) -> bool:
    """Returns whether ``name`` is in the catalogue, or the path of a file."""
    return name in gpu_names() or (is_path(name) and Path(name).is_file())


def knows_cluster(name: str) -> bool:
    """Returns whether ``name`` is a cluster of the catalogue, a rented machine, or the path of a file."""
    return name in cluster_names() or bool(machine_of(name)) or (is_path(name) and Path(name).is_file())


def is_path(name: str) -> bool:
    """Returns whether ``name`` is written as the path of a hardware file."""
    return name.endswith(SUFFIXES)


def _stripped(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", _NO_NAME.sub(" ", text.lower()))


@functools.cache
def _gpu_file(name: str) -> Gpu:
    return read_gpu(FOLDER / "gpus" / f"{name}.yaml")


@functools.cache
def _cluster_file(name: str) -> Cluster:
    return read_cluster(FOLDER / "clusters" / f"{name}.yaml", gpu)


@functools.cache
def _aliases() -> Mapping[str, str]:
    names = {_stripped(name): name for name in gpu_names()}
    for name in gpu_names():
        names |= {_stripped(alias): name for alias in listed_in(FOLDER / "gpus" / f"{name}.yaml", "aliases")}
    return names


# Machines that clouds rent, by the names that scripts and manifests call them: ``p5.48xlarge``, ``ND96isr_H100_v5``.
_FILE = Path(__file__).with_name("machines.yaml")
_BYTES = 1e9 / 8  # of a Gbit
_TECHNOLOGY_NAMES = {"infiniband": "InfiniBand", "roce": "RoCE", "efa": "EFA", "tcp": "TCP"}


@functools.cache
def _table() -> tuple[dict[str, Any], ...]:
    return tuple(read_yaml(_FILE))


@functools.cache
def _by_name(key: str) -> dict[str, dict[str, Any]]:
    """Returns the entries by each of their ``names``, or by their label ``gke``."""
    named = ((entry, entry.get(key, [])) for entry in _table())
    return {_key_of(name): entry for entry, names in named for name in ([names] if isinstance(names, str) else names)}


def _key_of(name: str) -> str:
    return name.lower().removeprefix("standard_").removeprefix("ml.").replace("-", "_")


def machine_names() -> tuple[str, ...]:
    """Returns one name of each machine, in alphabetical order."""
    return tuple(sorted(entry["names"][0] for entry in _table()))


def machine_of(text: str, key: str = "names") -> str | None:
    """Returns the machine that ``text`` names (``key``: ``names``, or ``gke`` for a label of Google's Kubernetes), or
    None. Case, dashes, Azure's ``Standard_`` and SageMaker's ``ml.`` do not matter."""
    entry = _by_name(key).get(_key_of(text))
    return None if entry is None else str(entry["names"][0])


def _rented(name: str) -> Cluster:
    """Returns the cluster of a machine that a cloud rents."""
    entry = _by_name("names")[_key_of(name)]
    base, network = _cluster_file(entry["cluster"]), entry.get("network")
    if network is None:
        return base
    of_host = network["gbits"] * _BYTES / base.gpus_per_host
    inter = replace(
        base.inter,
        name=f"{_TECHNOLOGY_NAMES[network['technology']]}, {network['gbits']} Gbit/s a host",
        technology="" if network["technology"] == "infiniband" else network["technology"],
        bandwidth=of_host,
        nics_per_node=network["nics"] * base.gpus_per_node // base.gpus_per_host,
        latency=_cluster_file(network["latency_as"]).inter.latency if "latency_as" in network else base.inter.latency,
    )
    return replace(base, name=entry["names"][0], inter=inter, sources=(*base.sources, f"inter: {entry['source']}"))
