"""``projector models | gpus | frameworks``: what the catalogue holds, one line each."""

from __future__ import annotations

import argparse
import fnmatch

from projector.cli.options import Subparsers, add_command
from projector.cli.page import NONE, Column, Table, show
from projector.errors import InputError, Problem, nearest

__all__ = ["register"]


def register(commands: Subparsers) -> None:
    models = add_command(commands, "models", "the architectures that are known, with their parameters", _models)
    models.add_argument("pattern", nargs="?", default="*", metavar="PATTERN", help="only these: deepseek, qwen3*")
    add_command(commands, "gpus", "the GPUs that are known: peaks, memory, bandwidth, fabric", _gpus)
    add_command(
        commands, "frameworks", "the frameworks that are known, and where their behaviour is taken from", _frameworks
    )


def _models(options: argparse.Namespace) -> None:
    from projector.workload import zoo
    from projector.workload.parameters import count

    names = [name for name in zoo.names() if not zoo.is_template(name)]
    pattern = options.pattern.lower()
    wild = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    chosen = fnmatch.filter(names, wild)
    if not chosen:
        raise InputError([Problem("models", "", options.pattern, nearest(options.pattern, names))])
    rows = []
    for name in chosen:
        model = zoo.load(name)
        counted = count(model)
        limits = ", ".join(model.unsupported)
        rows.append((name, _billions(counted.main), _billions(counted.active), str(model.num_layers), limits))
    columns = (Column("model", text=True), *map(Column, ("parameters", "active", "layers")))
    if any(row[-1] for row in rows):
        columns = (*columns, Column("not projected, because of", text=True))
    shown = tuple(row[: len(columns)] for row in rows)
    show([Table(title=f"{len(rows)} models (10⁹ parameters)", columns=columns, rows=shown)])


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.2f}"


def _gpus(_: argparse.Namespace) -> None:
    from projector.hardware import catalogue

    rows = []
    for name in catalogue.gpu_names():
        gpu = catalogue.gpu(name)
        peaks = [f"{gpu.peak[t] / 1e12:.0f}" if t in gpu.peak else NONE for t in ("bf16", "fp8", "fp4")]
        memory = (f"{gpu.memory_bytes / 2**30:.0f}", f"{gpu.memory_bandwidth / 1e9:.0f}")
        rows.append((name, gpu.title, gpu.arch, *peaks, *memory, *_fabric(name)))
    columns = (
        *(Column(title, text=True) for title in ("gpu", "title", "architecture")),
        *map(Column, ("bf16", "fp8", "fp4", "GiB", "GB/s", "node")),
        *(Column(title, text=True) for title in ("fabric in the node, GB/s", "between nodes, GB/s")),
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
    inside, between = (
        f"{fabric.name}, {fabric.bandwidth / 1e9:.0f}"
        if fabric.bandwidth >= 1e10
        else f"{fabric.name}, {fabric.bandwidth / 1e9:.1f}"
        for fabric in (cluster.intra, cluster.inter)
    )
    return str(cluster.gpus_per_node), inside, between


def _frameworks(_: argparse.Namespace) -> None:
    from projector import frameworks

    rows = []
    for name in frameworks.names():
        framework = frameworks.load(name)
        sources = framework.sources or (NONE,)
        rows.append((name, framework.title, sources[0]))
        rows += [("", "", source) for source in sources[1:]]
    columns = tuple(Column(title, text=True) for title in ("framework", "title", "sources"))
    show([Table(title=f"{len(frameworks.names())} frameworks", columns=columns, rows=tuple(rows))])
