"""What a user says beside a log: the GPU, and the recipe and model that a log without arguments does not print.

A YAML with these keys, or any configuration file that a projection takes: a Primus experiment, a case, Megatron-LM
arguments, a launch script.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from harness.evidence.ingest.fields import framework_slug
from harness.evidence.ingest.tables import read_yaml
from projector import frameworks
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, collecting_into, nearest, raise_all
from projector.hardware import catalogue, user_files
from projector.intake import detect
from projector.intake.loaded import Loaded
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.schema import REQUIRED, as_fields, counted, parse_model, parse_recipe
from projector.workload.structure import to_mapping

_TEXTS = ("id", "gpu", "cluster", "framework", "version", "date", "group", "notes")
_KEYS = (*_TEXTS, "gpus", "gpus_per_node", "model", "recipe")
_OURS = {"recipe", "model", "gpu", "gpus", "id", "framework"}
_OUR_KINDS = ("case", "megatron")  # what a file with some of these keys is taken for; other tools have a `model`, too


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a user states beside a log. Each field is empty or None where the user says nothing.

    ``stated``: the recipe's fields that are given; where they are a whole recipe, ``recipe`` is it. ``file``: a
    configuration of another kind that they are read from.
    """

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
    stated: Mapping[str, object] = field(default_factory=dict)
    file: Loaded | None = None

    def on(self, gpus: int | None) -> Context:
        """Returns the context with the recipe of ``file`` on ``gpus`` GPUs (None: nobody says how many). The global batch of
        some frameworks follows from that number (so many samples a rank): without it nothing states the batch."""
        if self.file is None or self.file.recipe is None:
            return self
        if gpus is not None:
            recipe = self.file.batched(self.file.recipe, gpus)
            return replace(self, recipe=recipe, stated=to_mapping(recipe))
        stated = to_mapping(self.file.recipe)
        if not self.file.counts_ranks:
            return replace(self, recipe=self.file.recipe, stated=stated)
        return replace(self, recipe=None, stated={k: v for k, v in stated.items() if k != "global_batch_size"})


def read_context(
    path: str | Path | None, gpu: str | None = None, gpus: int | None = None, framework: str | None = None
) -> Context:
    """Reads the file beside a log (None: an empty context); what the command line states comes first.

    Raises :class:`InputError` with every mistake.
    """
    context, problems = Context(), list[Problem]()
    if path is not None:
        with collecting_into(problems):
            context = _read_file(path, gpus)
    if gpu is not None:
        known = _known("gpu", gpu, catalogue.find_gpu(gpu), "--gpu", "", problems)
        context = replace(context, gpu=known, cluster=context.cluster if known == context.gpu else "")
    if framework is not None:
        name = _known("framework", framework, frameworks.named(framework), "--framework", "", problems)
        context = replace(context, framework=name)
    raise_all(problems)
    return replace(context, gpus=gpus) if gpus is not None else context


_NAMES = {"gpu": catalogue.gpu_names, "cluster": catalogue.cluster_names, "framework": frameworks.names}


def _known(kind: str, stated: object, name: str | None, where: str, key: str, problems: list[Problem]) -> str:
    """Returns the ``name`` by which a ``stated`` one is known; empty, and a mistake with the nearest names, for None."""
    if name is None:
        problems.append(Problem(where, key, stated, nearest(str(stated), tuple(_NAMES[kind]()))))
    return name or ""


def _read_file(path: str | Path, gpus: int | None) -> Context:
    where = str(path)
    data = read_yaml(Path(path)) if Path(path).suffix.lower() in (".yaml", ".yml", ".json") else None
    if data is None or (isinstance(data, Mapping) and not (_OURS & set(data) and detect.kind_of(data) in _OUR_KINDS)):
        # The context of a configuration file of another kind, on ``gpus`` where they are said beside it: the global
        # batch of some frameworks follows from their number.
        loaded = detect.load(path, gpus=gpus, gpus_given=gpus is not None)
        framework = loaded.framework if loaded.framework in frameworks.names() else ""
        found = Context(gpus=loaded.gpus, model=loaded.model, framework=framework, file=loaded).on(gpus or loaded.gpus)
        if not catalogue.knows_cluster(named := loaded.cluster or ""):
            return found
        return replace(found, gpu=catalogue.cluster(named).gpu.name, cluster=named)
    if not isinstance(data, Mapping):
        raise InputError([Problem(where, "", type(data).__name__, "a mapping with " + ", ".join(_KEYS))])
    problems = [
        Problem(where, str(key), value, nearest(str(key), _KEYS)) for key, value in data.items() if key not in _KEYS
    ]
    values: dict[str, Any] = {key: str(data[key]) for key in _TEXTS if data.get(key) is not None}
    for key in ("gpus", "gpus_per_node"):
        value = data.get(key)
        if value is not None and (type(value) is not int or value < 1):
            problems.append(Problem(where, key, value, "a positive whole number"))
        values[key] = value
    if data.get("model") is not None:
        values["model"], wrong = parse_model(data["model"], where)
        problems += wrong
    if data.get("recipe") is not None:
        problems += _read_recipe(data["recipe"], values, where)
    _resolve_names(values, where, problems)
    raise_all(problems)
    return Context(**values)


def _read_recipe(given: object, values: dict[str, Any], where: str) -> list[Problem]:
    """Reads a whole recipe, or a part of one that the log's own arguments complete."""
    if not isinstance(given, Mapping):
        return [Problem(where, "recipe", given, "a mapping")]
    duplicates: list[Problem] = []
    given = as_fields(given, where, "recipe.", duplicates)
    values["stated"] = given = {name: counted(name, value) for name, value in given.items()}
    if duplicates:
        return duplicates
    if all(given.get(name) is not None for name in REQUIRED):
        values["recipe"], wrong = parse_recipe(given, where)
        return wrong
    return parse_recipe({**dict.fromkeys(REQUIRED, 1), **{k: v for k, v in given.items() if v is not None}}, where)[1]


def _resolve_names(values: dict[str, Any], where: str, problems: list[Problem]) -> None:
    """Resolves GPU, cluster and framework names; unknown ones are problems with the nearest names."""
    if gpu := values.get("gpu"):
        known = catalogue.find_gpu(user_files.beside(gpu, where))
        values["gpu"] = _known("gpu", gpu, known, where, "gpu", problems)
    cluster = values["cluster"] = user_files.beside(values.get("cluster", ""), where)
    if cluster and not catalogue.knows_cluster(cluster):
        _known("cluster", cluster, None, where, "cluster", problems)
    if text := values.get("framework"):
        name = frameworks.find(text) or framework_slug(text)
        known = name if name in frameworks.names() else None
        values["framework"] = _known("framework", text, known, where, "framework", problems)
