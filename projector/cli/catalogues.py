"""Lists what the catalogue holds, one line each: ``projector models | gpus | clusters | frameworks``."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Sequence
from typing import TYPE_CHECKING

from projector.cli import as_json
from projector.cli.flags import add_command
from projector.cli.parser import Parser
from projector.errors import InputError, Problem, nearest
from projector.io.table import NONE, Column, Table
from projector.io.terminal import show

if TYPE_CHECKING:
    from projector.hardware.types import Fabric

_PEAKS = ("bf16", "fp8", "fp4")


def register(parser: Parser) -> None:
    """Adds the arguments of one of the four commands to ``parser``, whose program ends with the name of the command."""
    add_command(parser, _COMMANDS[parser.prog.split()[-1]])


def _chosen(options: argparse.Namespace, what: str, names: Sequence[str]) -> list[str]:
    """Returns the names that hold or match the pattern. Raises :class:`InputError` where none does."""
    pattern = options.pattern.lower()
    wild = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    chosen = [name for name in names if fnmatch.fnmatchcase(name.lower(), wild)]
    if not chosen:
        raise InputError([Problem(what, "", options.pattern, nearest(options.pattern, names))])
    return chosen


def _models(options: argparse.Namespace) -> None:
    from projector.workload import zoo
    from projector.workload.parameters import count

    names = [name for name in zoo.names() if not zoo.is_template(name)]
    rows, documents = [], []
    for name in _chosen(options, "models", names):
        model = zoo.load(name)
        counted = count(model)
        limits = ", ".join(model.unsupported)
        rows.append((name, _billions(counted.main), _billions(counted.active), str(model.num_layers), limits))
        sizes = {"parameters": counted.main, "active_parameters": counted.active, "num_layers": model.num_layers}
        documents.append({"name": name, **sizes, "unsupported": model.unsupported})
    if options.json:
        as_json.write({"command": "models", "models": documents})
        return
    columns = (Column("model", numeric=False), *map(Column, ("parameters", "active")), Column("layers", minor=1))
    if any(row[-1] for row in rows):
        columns = (*columns, Column("not projected, because of", numeric=False))
    shown = tuple(row[: len(columns)] for row in rows)
    show([Table(title=f"{len(rows)} models (10⁹ parameters)", columns=columns, rows=shown)])


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.2f}"


def _gpus(options: argparse.Namespace) -> None:
    from projector.hardware import catalogue

    rows, documents = [], []
    for name in _chosen(options, "gpus", catalogue.gpu_names()):
        gpu = catalogue.gpu(name)
        peaks = [f"{gpu.peak[t] / 1e12:.0f}" if t in gpu.peak else NONE for t in _PEAKS]
        memory = (f"{gpu.memory_bytes / 2**30:.0f}", f"{gpu.memory_bandwidth / 1e9:.0f}")
        rows.append((name, gpu.title, gpu.arch, *peaks, *memory, *_fabric(name)))
        facts = {"name": name, "title": gpu.title, "vendor": gpu.vendor, "arch": gpu.arch, "peak": gpu.peak}
        documents.append({**facts, "memory_bytes": gpu.memory_bytes, "memory_bandwidth": gpu.memory_bandwidth})
    if options.json:
        as_json.write({"command": "gpus", "gpus": documents})
        return
    columns = (
        Column("gpu", numeric=False),
        Column("title", numeric=False, minor=4),
        Column("architecture", numeric=False, minor=1),
        *map(Column, ("bf16", "fp8", "fp4", "GiB", "GB/s", "node")),
        Column("fabric in the node, GB/s", numeric=False, minor=2),
        Column("between nodes, GB/s", numeric=False, minor=3),
    )
    note = "Dense peaks in TFLOP/s; fabric bandwidth per GPU and direction in the usual cluster of the GPU."
    others = [name for name in catalogue.cluster_names() if name not in catalogue.gpu_names()]
    note += f" Further clusters: {', '.join(others)}." if others else ""
    show([Table(title=f"{len(rows)} GPUs", columns=columns, rows=tuple(rows), note=note)])


def _fabric(name: str) -> tuple[str, str, str]:
    from projector.hardware import catalogue

    if name not in catalogue.cluster_names():
        return NONE, NONE, NONE
    cluster = catalogue.cluster(name)
    return str(cluster.gpus_per_node), _line_rate(cluster.intra), _line_rate(cluster.inter)


def _line_rate(fabric: Fabric) -> str:
    digits = 0 if fabric.bandwidth >= 1e10 else 1
    return f"{fabric.name}, {fabric.bandwidth / 1e9:.{digits}f}"


def _clusters(options: argparse.Namespace) -> None:
    from projector.hardware import catalogue
    from projector.hardware.catalogue import machine_names

    rows, documents = [], []
    for name in _chosen(options, "clusters", (*catalogue.cluster_names(), *machine_names())):
        cluster = catalogue.cluster(name)
        sizes = (cluster.gpus_per_host, cluster.gpus_per_node)
        rows.append((name, cluster.gpu.name, *map(str, sizes), _line_rate(cluster.intra), _line_rate(cluster.inter)))
        fabrics = {
            level: {"name": fabric.name, "topology": fabric.topology, "bandwidth": fabric.bandwidth}
            for level, fabric in (("intra", cluster.intra), ("inter", cluster.inter))
        }
        facts = {"name": name, "gpu": cluster.gpu.name, "gpus_per_host": sizes[0], "gpus_per_node": sizes[1]}
        documents.append({**facts, **fabrics})
    if options.json:
        as_json.write({"command": "clusters", "clusters": documents})
        return
    columns = (
        Column("cluster", numeric=False),
        Column("gpu", numeric=False, minor=1),
        *map(Column, ("host", "node")),
        *(Column(title, numeric=False) for title in ("fabric in the node, GB/s", "between nodes, GB/s")),
    )
    note = "GPUs of a host and of a node (an NVLink domain may span hosts); bandwidth per GPU and direction."
    show([Table(title=f"{len(rows)} clusters", columns=columns, rows=tuple(rows), note=note)])


def _frameworks(options: argparse.Namespace) -> None:
    from projector import frameworks

    rows, documents = [], []
    chosen = _chosen(options, "frameworks", frameworks.names())
    for name in chosen:
        framework = frameworks.load(name)
        sources = framework.sources or (NONE,)
        rows.append((name, framework.title, sources[0]))
        rows += [("", "", source) for source in sources[1:]]
        documents.append({"name": name, "title": framework.title, "sources": list(framework.sources)})
    if options.json:
        as_json.write({"command": "frameworks", "frameworks": documents})
        return
    columns = tuple(Column(name, numeric=False, minor=name == "title") for name in ("framework", "title", "sources"))
    show([Table(title=f"{len(chosen)} frameworks", columns=columns, rows=tuple(rows))])


_COMMANDS = {"models": _models, "gpus": _gpus, "clusters": _clusters, "frameworks": _frameworks}
