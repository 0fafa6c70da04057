"""Lists what the catalogue holds, one line each: ``projector models | gpus | clusters | frameworks``."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Sequence
from typing import Any

from projector.cli import as_json
from projector.cli.flags import add_command
from projector.cli.parser import Parser
from projector.errors import InputError, Problem, nearest
from projector.io.table import NONE, Cell, at, figure, table_of, text, values

_PEAKS = {"16-bit": "fp16", "8-bit": "fp8", "4-bit": "mxfp4"}  # a type that every GPU with such a rate has


def register(parser: Parser) -> None:
    """Adds the arguments of one of the four commands to ``parser``, whose program ends with the name of the command."""
    add_command(parser, _COMMANDS[parser.prog.split()[-1]])


def chosen(pattern: str, names: Sequence[str], what: str) -> list[str]:
    """Returns the names that hold or match the pattern. Raises :class:`InputError` where none does."""
    lowered = pattern.lower()
    wild = lowered if any(mark in lowered for mark in "*?[") else f"*{lowered}*"
    matching = [name for name in names if fnmatch.fnmatchcase(name.lower(), wild)]
    if not matching:
        raise InputError([Problem(what, "", pattern, nearest(pattern, names))])
    return matching


def _tell(
    options: argparse.Namespace, documents: Sequence[Any], columns: Sequence[Cell], title: str, note: str = "",
    rows: Sequence[Any] = (),
) -> None:  # fmt: skip
    """Shows the documents of a catalogue as they are, or as a table of them (or of other ``rows``)."""
    kind = title.partition(" ")[0].lower()
    shown = table_of(f"{len(documents)} {title}", rows or documents, columns, note)
    as_json.tell(options.json, lambda: {"command": kind, kind: documents}, lambda: [shown])


def _models(options: argparse.Namespace) -> None:
    from projector.workload import zoo
    from projector.workload.parameters import count

    names = [name for name in zoo.names() if not zoo.is_template(name)]
    documents = []
    for name in chosen(options.pattern, names, "models"):
        model = zoo.load(name)
        counted = count(model)
        sizes = {"parameters": counted.main, "active_parameters": counted.active, "num_layers": model.num_layers}
        documents.append({"name": name, **sizes, "unsupported": model.unsupported})
    refused = any(each["unsupported"] for each in documents)
    columns = (
        text("model", "name"),
        figure("parameters", "parameters", _billions),
        figure("active", "active_parameters", _billions),
        figure("layers", "num_layers", minor=1),
        *((text("not projected, because of", "unsupported", ", ".join),) if refused else ()),
    )
    _tell(options, documents, columns, "models (10⁹ parameters)")


def _billions(number: float) -> str:
    return f"{number / 1e9:.2f}"


def _gpus(options: argparse.Namespace) -> None:
    from projector.hardware import catalogue

    documents = []
    for name in chosen(options.pattern, catalogue.gpu_names(), "gpus"):
        gpu = catalogue.gpu(name)
        facts = {"name": name, "title": gpu.title, "vendor": gpu.vendor, "arch": gpu.arch, "peak": gpu.peak}
        documents.append({**facts, "memory_bytes": gpu.memory_bytes, "memory_bandwidth": gpu.memory_bandwidth})
    clusters = {name: catalogue.cluster(name) for name in catalogue.cluster_names()}
    columns = (
        text("gpu", "name"),
        text("title", "title", minor=4),
        text("architecture", "arch", minor=1),
        *(
            figure(bits, lambda gpu, kind=kind: gpu["peak"].get(kind), lambda rate: f"{rate / 1e12:.0f}")  # type: ignore[misc]
            for bits, kind in _PEAKS.items()
        ),
        figure("GiB", "memory_bytes", lambda size: f"{size / 2**30:.0f}"),
        figure("GB/s", "memory_bandwidth", lambda rate: f"{rate / 1e9:.0f}"),
        figure("node", lambda gpu: at(clusters.get(gpu["name"]), "gpus_per_node")),
        text("fabric in the node, GB/s", lambda gpu: at(clusters.get(gpu["name"]), "intra"), _line_rate, minor=2),
        text("between nodes, GB/s", lambda gpu: at(clusters.get(gpu["name"]), "inter"), _line_rate, minor=3),
    )
    note = "Dense peaks in TFLOP/s; fabric bandwidth per GPU and direction in the usual cluster of the GPU."
    others = [name for name in clusters if name not in catalogue.gpu_names()]
    note += f" Further clusters: {', '.join(others)}." if others else ""
    _tell(options, documents, columns, "GPUs", note)


def _line_rate(fabric: Any) -> str:
    """Returns name and GB/s of a fabric, or of a document of one."""
    bandwidth = at(fabric, "bandwidth")
    return f"{at(fabric, 'name')}, {bandwidth / 1e9:.{0 if bandwidth >= 1e10 else 1}f}"


def _clusters(options: argparse.Namespace) -> None:
    from projector.hardware import catalogue
    from projector.hardware.catalogue import machine_names

    documents = []
    for name in chosen(options.pattern, (*catalogue.cluster_names(), *machine_names()), "clusters"):
        cluster = catalogue.cluster(name)
        fabrics = {level: values(getattr(cluster, level), "name topology bandwidth") for level in ("intra", "inter")}
        documents.append({"name": name, **values(cluster, "gpu=gpu.name gpus_per_host gpus_per_node"), **fabrics})
    columns = (
        text("cluster", "name"),
        text("gpu", "gpu", minor=1),
        figure("host", "gpus_per_host"),
        figure("node", "gpus_per_node"),
        text("fabric in the node, GB/s", "intra", _line_rate),
        text("between nodes, GB/s", "inter", _line_rate),
    )
    note = "GPUs of a host and of a node (an NVLink domain may span hosts); bandwidth per GPU and direction."
    _tell(options, documents, columns, "clusters", note)


def _frameworks(options: argparse.Namespace) -> None:
    from projector import frameworks

    names = chosen(options.pattern, frameworks.names(), "frameworks")
    documents = [{"name": name, **values(frameworks.load(name), "title sources")} for name in names]
    rows = [
        ("", "", source) if place else (each["name"], each["title"], source)
        for each in documents
        for place, source in enumerate(each["sources"] or (NONE,))
    ]
    columns = (text("framework", 0), text("title", 1, minor=1), text("sources", 2))
    _tell(options, documents, columns, "frameworks", rows=rows)


_COMMANDS = {"models": _models, "gpus": _gpus, "clusters": _clusters, "frameworks": _frameworks}
