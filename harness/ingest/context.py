"""What a user says beside a log: the GPU, and the recipe and model that a log without arguments does not print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.ingest.fields import framework_slug
from harness.ingest.tables import read_yaml
from projector import frameworks
from projector.errors import InputError, Problem, nearest
from projector.hardware import catalogue
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.schema import parse_model, parse_recipe

__all__ = ["Context", "read_context"]

_TEXTS = ("id", "gpu", "cluster", "framework", "version", "date", "group", "notes")
_KEYS = (*_TEXTS, "gpus", "gpus_per_node", "model", "recipe")


@dataclass(frozen=True, kw_only=True)
class Context:
    """Each field empty or None where the user says nothing."""

    id: str = ""
    gpu: str = ""
    cluster: str = ""
    framework: str = ""
    version: str = ""
    date: str = ""
    group: str = ""
    notes: str = ""
    gpus: int | None = None
    gpus_per_node: int | None = None
    model: Model | None = None
    recipe: Recipe | None = None


def read_context(path: str | Path | None) -> Context:
    """Read the YAML beside a log (None: an empty context). Raises :class:`InputError` with every mistake."""
    if path is None:
        return Context()
    where = str(path)
    data = read_yaml(Path(path))
    if not isinstance(data, Mapping):
        raise InputError([Problem(where, "", type(data).__name__, "a mapping with " + ", ".join(_KEYS))])
    problems = [
        Problem(where, str(key), value, nearest(str(key), _KEYS)) for key, value in data.items() if key not in _KEYS
    ]
    values: dict[str, object] = {}
    for key in _TEXTS:
        if data.get(key) is not None:
            values[key] = str(data[key])
    for key in ("gpus", "gpus_per_node"):
        value = data.get(key)
        if value is not None and (type(value) is not int or value < 1):
            problems.append(Problem(where, key, value, "a positive whole number"))
        values[key] = value
    if data.get("model") is not None:
        values["model"], wrong = parse_model(data["model"], where)
        problems += wrong
    if data.get("recipe") is not None:
        values["recipe"], wrong = parse_recipe(data["recipe"], where)
        problems += wrong
    problems += _known(values, where)
    if problems:
        raise InputError(problems)
    return Context(**values)  # type: ignore[arg-type]


def _known(values: dict[str, object], where: str) -> list[Problem]:
    """Resolve GPU, cluster and framework names; unknown ones are problems with the nearest names."""
    problems = []
    if gpu := values.get("gpu"):
        found = catalogue.find_gpu(str(gpu))
        if found is None:
            problems.append(Problem(where, "gpu", gpu, nearest(str(gpu), catalogue.gpu_names())))
        values["gpu"] = found or ""
    cluster = values.get("cluster")
    if cluster and cluster not in catalogue.cluster_names():
        problems.append(Problem(where, "cluster", cluster, nearest(str(cluster), catalogue.cluster_names())))
    if text := values.get("framework"):
        name = frameworks.find(str(text)) or framework_slug(str(text))
        if name not in frameworks.names():
            problems.append(Problem(where, "framework", text, nearest(str(text), frameworks.names())))
        values["framework"] = name
    return problems
