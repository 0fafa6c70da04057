"""Reads the ``cases`` list of a suite, configurations with nothing measured yet, as runs without figures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.contracts.runs import Measured, MeasuredRun, Source, Stack
from harness.evidence.dataset import lacks, missing_model
from projector import frameworks
from projector.errors import InputError, Problem, nearest
from projector.frameworks import experts_follow
from projector.hardware import catalogue, user_files
from projector.hardware.types import Cluster
from projector.intake import case
from projector.workload import schema, validate
from projector.workload.value_checks import range_problems

KEYS = (*case.KEYS, "strategy")
DEFAULT_FRAMEWORK = "megatron-lm"
_MOST_GPUS = 10_000_000


def parse(value: object, where: str) -> tuple[list[MeasuredRun], list[Problem]]:
    """Returns the cases in order as runs, and every mistake of every case."""
    if value is None:
        return [], []
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [], [Problem(where, "cases", value, "a list of cases")]
    runs: list[MeasuredRun] = []
    problems: list[Problem] = []
    first: dict[object, int] = {}
    for i, item in enumerate(value):
        key = f"cases[{i}]"
        if not isinstance(item, Mapping):
            problems.append(Problem(where, key, item, "a mapping with " + ", ".join(KEYS)))
            continue
        run, wrong = _case(item, where, f"{key}.")
        problems += wrong
        name = str(item.get("id"))
        if "id" in item and name in first:
            problems.append(Problem(where, f"{key}.id", name, f"an id that cases[{first[name]}] does not have"))
        first.setdefault(name, i)
        if run is not None:
            runs.append(run)
    return runs, problems


def _case(item: Mapping[str, Any], where: str, key: str) -> tuple[MeasuredRun | None, list[Problem]]:
    problems = [Problem(where, f"{key}{k}", item[k], nearest(str(k), KEYS)) for k in item if k not in KEYS]
    problems += _text_problems(item, where, key)
    missing = [name for name in ("id", "model", "recipe") if name not in item]
    problems += [Problem(where, f"{key}{name}", "nothing", "a value: every case has one") for name in missing]
    lacking = missing_model(item.get("model"))
    model, recipe = None, None
    if "model" in item and not lacking:
        model, wrong = schema.parse_model(item["model"], where, f"{key}model.")
        problems += wrong
    if "recipe" in item:
        recipe, wrong = schema.parse_recipe(item["recipe"], where, f"{key}recipe.")
        problems += wrong
    cluster = _cluster(item, where, key, problems)
    gpus = _gpus(item, cluster, where, key, problems)
    framework = item.get("framework", DEFAULT_FRAMEWORK)
    if framework not in frameworks.names():
        problems.append(Problem(where, f"{key}framework", framework, nearest(str(framework), frameworks.names())))
    if (model is None and not lacking) or recipe is None or cluster is None or gpus is None:
        return None, problems + _range_problems(item, where, key, {p.key for p in problems})
    run = MeasuredRun(
        id=str(item.get("id")),
        source=Source(title="not measured", kind="case"),
        gpu=_hardware_file(item, where) or cluster.gpu.name,
        gpus=gpus,
        stack=Stack(framework=str(framework), date=str(item.get("framework_date", ""))),
        model=model,
        recipe=recipe,
        measured=Measured(),
        model_name=model.name if model else lacking,
        problem="" if model else lacks(lacking),
        cluster=(_hardware_file(item, where) or cluster.name) if "cluster" in item else None,
        group=str(item.get("group", "")),
        switches={"strategy": str(item["strategy"])} if "strategy" in item else {},
        notes=str(item.get("notes", "")),
    )
    if model is not None and "etp" not in item["recipe"]:
        try:
            run = replace(run, recipe=experts_follow(run.workload, where)[0].recipe)
        except InputError as error:
            problems += [replace(p, key=f"{key}recipe.{p.key}") for p in error.problems]
    if model is not None:
        problems += [replace(p, key=key + p.key) for p in validate.problems(run.workload, where)]
    return run, problems


def _hardware_file(item: Mapping[str, Any], where: str) -> str:
    """Returns the path of the hardware file that a case names; empty where it names hardware of the catalogue."""
    name = str(item.get("cluster", item.get("gpu")))
    return user_files.beside(name, where) if catalogue.is_path(name) else ""


def _range_problems(item: Mapping[str, Any], where: str, key: str, known: Collection[str]) -> list[Problem]:
    """Reports numbers out of range in a case that is already refused; ``known``: keys reported before."""
    parts = [name for name in ("model", "recipe") if isinstance(item.get(name), Mapping)]
    problems = [p for name in parts for p in range_problems(item[name], where, f"{key}{name}.")]
    return [p for p in problems if p.key not in known]


def _text_problems(item: Mapping[str, Any], where: str, key: str) -> list[Problem]:
    stated = [name for name in ("id", "group", "strategy", "notes", "framework_date") if name in item]
    wrong = [(name, "text") for name in stated if not (isinstance(item[name], str) and item[name])]
    if isinstance(name := item.get("id"), str) and not name.isprintable():
        wrong.append(("id", "printable text in one line"))
    return [Problem(where, f"{key}{name}", item[name], expected) for name, expected in wrong]


def _one_of(item: Mapping[str, Any], names: Sequence[str], where: str, key: str, problems: list[Problem]) -> str:
    """Returns which of two keys a case has; empty, and a mistake, where it is not exactly one."""
    stated = [name for name in names if name in item]
    if len(stated) == 1:
        return stated[0]
    found = " and ".join(stated) or "neither"
    problems.append(Problem(where, key.rstrip("."), found, f"exactly one of {', '.join(names)}"))
    return ""


def _cluster(item: Mapping[str, Any], where: str, key: str, problems: list[Problem]) -> Cluster | None:
    kind = _one_of(item, ("cluster", "gpu"), where, key, problems)
    if not kind:
        return None
    known = tuple(catalogue.cluster_names() if kind == "cluster" else catalogue.gpu_names())
    name = str(item[kind])
    if catalogue.is_path(name):
        name = user_files.beside(name, where)
    elif name not in known:
        problems.append(Problem(where, f"{key}{kind}", item[kind], nearest(name, known)))
        return None
    try:
        return catalogue.cluster(name) if kind == "cluster" else catalogue.default_cluster(name)
    except InputError as error:
        problems += error.problems
        return None


def _gpus(
    item: Mapping[str, Any], cluster: Cluster | None, where: str, key: str, problems: list[Problem]
) -> int | None:
    kind = _one_of(item, ("gpus", "nodes"), where, key, problems)
    count = item.get(kind)
    if kind and (type(count) is not int or not 1 <= count <= _MOST_GPUS):
        problems.append(Problem(where, f"{key}{kind}", count, f"a whole number from 1 to {_MOST_GPUS}"))
    elif kind == "gpus":
        return count
    elif kind and cluster is not None:
        return int(count or 0) * cluster.gpus_per_host
    return None
