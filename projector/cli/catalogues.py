"""Lists what the catalogue holds, one line each: ``projector models | gpus | clusters | frameworks``."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Sequence
from typing import Any

from projector.cli import as_json
from projector.cli.flags import add_command
from projector.cli.parser import Parser
from projector.cli.tables import tabled
from projector.errors import InputError, Problem, nearest
from projector.io.table import NONE, at, values

_PEAKS = ("fp16", "fp8", "mxfp4")  # a type that every GPU with such a rate has


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
    options: argparse.Namespace, kind: str, documents: Sequence[Any], rows: Sequence[Any] = (), **known: Any
) -> None:
    """Shows the documents of a catalogue as they are, or as a table of them (or of other ``rows``)."""
    table = tabled(kind, rows or documents, count=len(documents), line_rate=_line_rate, **known)
    as_json.tell(options.json, lambda: {"command": kind, kind: documents}, lambda: [table])


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
    _tell(options, "models", documents, refused=refused)


def _gpus(options: argparse.Namespace) -> None:
    from projector.hardware import catalogue

    documents = []
    for name in chosen(options.pattern, catalogue.gpu_names(), "gpus"):
        gpu = catalogue.gpu(name)
        facts: dict[str, Any] = {
            "name": name,
            "title": gpu.title,
            "vendor": gpu.vendor,
            "arch": gpu.arch,
            "peak": gpu.peak,
        }
        documents.append({**facts, "memory_bytes": gpu.memory_bytes, "memory_bandwidth": gpu.memory_bandwidth})
    clusters = {name: catalogue.cluster(name) for name in catalogue.cluster_names()}
    others = [name for name in clusters if name not in catalogue.gpu_names()]
    further = f" Further clusters: {', '.join(others)}." if others else ""
    rates = dict.fromkeys(_PEAKS)
    rows = [{**rates, **each["peak"], **each, "cluster": clusters.get(each["name"])} for each in documents]
    _tell(options, "gpus", documents, rows, others=further)


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
    _tell(options, "clusters", documents)


def _frameworks(options: argparse.Namespace) -> None:
    from projector import frameworks

    names = chosen(options.pattern, frameworks.names(), "frameworks")
    documents = [{"name": name, **values(frameworks.load(name), "title sources")} for name in names]
    rows = [
        ("", "", source) if place else (each["name"], each["title"], source)
        for each in documents
        for place, source in enumerate(each["sources"] or (NONE,))
    ]
    _tell(options, "frameworks", documents, rows)


_COMMANDS = {"models": _models, "gpus": _gpus, "clusters": _clusters, "frameworks": _frameworks}
