"""What a user says beside a log: the GPU, and the recipe and model that a log without arguments does not print.

A YAML with these keys, or any configuration file that a projection takes: a Primus experiment, a case, Megatron-LM
arguments, a launch script.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

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
from projector.workload.schema import as_fields, counted, parse_model, parse_recipe
from projector.workload.structure import to_mapping

_TEXTS = ("id", "gpu", "cluster", "framework", "version", "date", "group", "notes")
_KEYS = (*_TEXTS, "gpus", "gpus_per_node", "model", "recipe")
_OURS = {"recipe", "model", "gpu", "gpus", "id", "framework"}
_OUR_KINDS = ("case", "megatron")  # what a file with some of these keys is taken for; other tools have a `model`, too
_NEEDED = ("micro_batch_size", "global_batch_size", "seq_length")


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
        known_gpu = catalogue.find_gpu(gpu)
        if known_gpu is None:
            problems.append(Problem("--gpu", "", gpu, nearest(gpu, catalogue.gpu_names())))
        context = replace(context, gpu=known_gpu or "")
    if framework is not None:
        name = frameworks.named(framework)
        if name is None:
            problems.append(Problem("--framework", "", framework, nearest(framework, frameworks.names())))
        context = replace(context, framework=name or "")
    raise_all(problems)
    return replace(context, gpus=gpus) if gpus is not None else context


def _read_file(path: str | Path, gpus: int | None) -> Context:
    where = str(path)
    data = read_yaml(Path(path)) if Path(path).suffix.lower() in (".yaml", ".yml", ".json") else None
    if data is None or (isinstance(data, Mapping) and not (_OURS & set(data) and detect.kind_of(data) in _OUR_KINDS)):
        # The context of a configuration file of another kind, on ``gpus`` where they are said beside it: the global
        # batch of some frameworks follows from their number.
        loaded = detect.load(path, gpus=gpus, gpus_given=gpus is not None)
        framework = loaded.framework if loaded.framework in frameworks.names() else ""
        return Context(gpus=loaded.gpus, model=loaded.model, framework=framework, file=loaded).on(gpus or loaded.gpus)
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
        problems += _read_recipe(data["recipe"], values, where)
    problems += _resolve_names(values, where)
    raise_all(problems)
    return Context(**values)  # type: ignore[arg-type]


def _read_recipe(given: object, values: dict[str, object], where: str) -> list[Problem]:
    """Reads a whole recipe, or a part of one that the log's own arguments complete."""
    if not isinstance(given, Mapping):
        return [Problem(where, "recipe", given, "a mapping")]
    duplicates: list[Problem] = []
    given = as_fields(given, where, "recipe.", duplicates)
    values["stated"] = given = {name: counted(name, value) for name, value in given.items()}
    if duplicates:
        return duplicates
    if all(given.get(name) is not None for name in _NEEDED):
        values["recipe"], wrong = parse_recipe(given, where)
        return wrong
    return parse_recipe({**dict.fromkeys(_NEEDED, 1), **{k: v for k, v in given.items() if v is not None}}, where)[1]


def _resolve_names(values: dict[str, object], where: str) -> list[Problem]:
    """Resolves GPU, cluster and framework names; unknown ones are problems with the nearest names."""
    problems = []
    if gpu := values.get("gpu"):
        known_gpu = catalogue.find_gpu(user_files.beside(str(gpu), where))
        if known_gpu is None:
            problems.append(Problem(where, "gpu", gpu, nearest(str(gpu), catalogue.gpu_names())))
        values["gpu"] = known_gpu or ""
    cluster = values["cluster"] = user_files.beside(str(values.get("cluster") or ""), where)
    if cluster and not catalogue.knows_cluster(cluster):
        problems.append(Problem(where, "cluster", cluster, nearest(str(cluster), catalogue.cluster_names())))
    if text := values.get("framework"):
        name = frameworks.find(str(text)) or framework_slug(str(text))
        if name not in frameworks.names():
            problems.append(Problem(where, "framework", text, nearest(str(text), frameworks.names())))
        values["framework"] = name
    return problems
