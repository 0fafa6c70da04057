"""Answers whether a framework can train a model on a GPU, since when, and what was measured: ``projector support``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from projector.cli.tables import tabled
from projector.errors import InputError, Problem, nearest
from projector.io.table import Line, Table

if TYPE_CHECKING:
    from projector.hardware.types import Cluster
    from projector.settle.support import Support
    from projector.workload.model import Model

_WORDS = {True: "yes", False: "no", None: "not known"}


def command(options: argparse.Namespace) -> None:
    from projector.cli import as_json
    from projector.settle.support import supported

    model, cluster, framework = _subject(options)
    support = supported(model, cluster, framework, options.framework_date)
    subject = {"model": model.name, "gpu": cluster.gpu.name, "framework": framework}
    answers = {"refused": support.refused, "answers": [asdict(answer) for answer in support.answers]}
    rest = {"measured": measured(cluster.gpu.name, framework), "not_modelled": support.open}
    as_json.tell(
        options.json,
        lambda: {"command": "support", **subject, "supported": not support.refused, **answers, **rest},
        lambda: _page(model, cluster, framework, support),
    )


def _subject(options: argparse.Namespace) -> tuple[Model, Cluster, str]:
    """Returns the model, cluster and framework that are asked about. Raises :class:`InputError` for unknown names."""
    from projector import frameworks
    from projector.hardware import catalogue
    from projector.workload import zoo
    from projector.workload.workload import MONTH, is_month

    problems: list[Problem] = []
    name, framework = zoo.find(options.model), frameworks.named(options.framework)
    if name is None:
        problems.append(Problem("MODEL", "", options.model, zoo.expected(options.model)))
    if framework is None:
        expected = nearest(options.framework, frameworks.names())
        problems.append(Problem("FRAMEWORK", "", options.framework, expected))
    if options.framework_date and not is_month(options.framework_date):
        problems.append(Problem("--framework-date", "", options.framework_date, MONTH))
    try:
        cluster = catalogue.cluster(options.gpu)
    except InputError as error:
        problems += [Problem("GPU", "", each.found, each.expected) for each in error.problems]
    if name is None or framework is None or problems:
        raise InputError(problems)
    return zoo.load(name), cluster, framework


def measured(gpu: str, framework: str) -> dict[str, dict[str, int] | str]:
    """Returns the runs and sources of the posterior: of this framework on this GPU, of either elsewhere; and the first
    looks that all intervals rest on."""
    from projector import posterior

    known = posterior.load()
    keys = {"both": f"{gpu} × {framework}", "gpu": gpu, "framework": framework}
    counts = {name: known.counts.get(key, (0, 0)) for name, key in keys.items()}
    counted = {name: {"runs": runs, "sources": sources} for name, (runs, sources) in counts.items()}
    return {**counted, "first_looks": known.evidence.get("first looks", "")}


def _page(model: Model, cluster: Cluster, framework: str, support: Support) -> Iterator[Line | Table]:
    gpu = cluster.gpu
    yield Line(f"{model.name} on {gpu.title} with {framework}: {'no' if support.refused else 'yes'}", "bold")
    yield from (Line(f"Refused: {reason}", "bad") for reason in support.refused)
    yield tabled("support", support.answers, can=lambda answer: _WORDS[answer.runs])
    yield Line("")
    counts = measured(gpu.name, framework)
    words = {"both": f"{framework} on {gpu.name}", "gpu": f"{gpu.name} in all", "framework": f"{framework} in all"}
    yield Line("Measured: " + "; ".join(_runs_words(counts[key], name) for key, name in words.items()))
    yield Line(f"Widths of intervals come from first looks: {counts['first_looks']}", "dim")
    yield from (Line(f"Not modelled or assumed: {each}") for each in support.open)


def _runs_words(count: object, name: str) -> str:
    assert isinstance(count, dict)
    runs, sources = count["runs"], count["sources"]
    if not runs:
        return f"no run of {name}"
    return f"{runs} run{'s' * (runs > 1)} of {name} ({sources} source{'s' * (sources > 1)})"
