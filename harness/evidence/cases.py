"""Reads the ``cases`` list of a suite, configurations with nothing measured yet, as runs without figures."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.contracts.runs import Measured, MeasuredRun, Source, Stack
from harness.evidence.dataset import lacks, missing_model
from projector import frameworks
from projector.errors import InputError, Problem, nearest, or_none
from projector.frameworks import experts_follow
from projector.hardware import catalogue, user_files
from projector.hardware.types import Cluster
from projector.intake import case
from projector.intake.loaded import Loaded
from projector.workload import validate, zoo
from projector.workload.value_checks import range_problems

KEYS = (*case.KEYS, "strategy")


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
    problems = list(_mistakes(item, where, key))
    lacking = missing_model(item.get("model"))
    loaded: Loaded | None = None
    try:  # beside a model that the zoo lacks all else is read; the one in its place is nobody's
        own = {name: value for name, value in item.items() if name != "strategy"}
        loaded = case.from_mapping(own, Path(where), model=Loaded(model=zoo.load(zoo.names()[0])) if lacking else None)
    except InputError as error:
        problems += [replace(p, key=key + p.key) for p in error.problems]
    cluster = _cluster(item, where, key, problems)
    if loaded is None or cluster is None or loaded.recipe is None:
        return None, problems + _range_problems(item, where, key, {p.key for p in problems})
    model = None if lacking else loaded.model
    run = MeasuredRun(
        id=str(item.get("id")),
        source=Source(title="not measured", kind="case"),
        gpu=_hardware_file(item, where) or cluster.gpu.name,
        gpus=loaded.gpus or (loaded.nodes or 0) * cluster.gpus_per_host,
        stack=Stack(framework=loaded.framework, date=loaded.framework_date),
        model=model,
        recipe=loaded.recipe,
        measured=Measured(),
        model_name=model.name if model else lacking,
        problem="" if model else lacks(lacking),
        cluster=(_hardware_file(item, where) or cluster.name) if "cluster" in item else None,
        group=str(item.get("group", "")),
        switches={"strategy": str(item["strategy"])} if "strategy" in item else {},
        notes=str(item.get("notes", "")),
    )
    if model is None or problems:
        return run, problems
    if not loaded.etp_stated:
        try:
            run = replace(run, recipe=experts_follow(run.workload, where)[0].recipe)
        except InputError as error:
            problems += [replace(p, key=f"{key}recipe.{p.key}") for p in error.problems]
    return run, problems + [replace(p, key=key + p.key) for p in validate.problems(run.workload, where)]


def _mistakes(item: Mapping[str, Any], where: str, key: str) -> Iterator[Problem]:
    """Yields what is wrong with a case of a suite beyond what a case by itself may state."""
    if "id" not in item:
        yield Problem(where, f"{key}id", "nothing", "a value: every case has one")
    elif not str(item["id"]).isprintable():
        yield Problem(where, f"{key}id", item["id"], "printable text in one line")
    if "strategy" in item and not (isinstance(item["strategy"], str) and item["strategy"]):
        yield Problem(where, f"{key}strategy", item["strategy"], "text")
    for names in (("cluster", "gpu"), ("gpus", "nodes")):
        if not set(names) & set(item):
            yield Problem(where, key.rstrip("."), "neither", f"exactly one of {', '.join(names)}")
    framework = item.get("framework", Loaded.framework)
    if framework not in frameworks.names():
        yield Problem(where, f"{key}framework", framework, nearest(str(framework), frameworks.names()))


def _hardware_file(item: Mapping[str, Any], where: str) -> str:
    """Returns the path of the hardware file that a case names; empty where it names hardware of the catalogue."""
    name = str(item.get("cluster", item.get("gpu")))
    return user_files.beside(name, where) if catalogue.is_path(name) else ""


def _range_problems(item: Mapping[str, Any], where: str, key: str, known: Collection[str]) -> list[Problem]:
    """Reports numbers out of range in a case that is already refused; ``known``: keys reported before."""
    parts = [name for name in ("model", "recipe") if isinstance(item.get(name), Mapping)]
    problems = [p for name in parts for p in range_problems(item[name], where, f"{key}{name}.")]
    return [p for p in problems if p.key not in known]


def _cluster(item: Mapping[str, Any], where: str, key: str, problems: list[Problem]) -> Cluster | None:
    kind = "cluster" if "cluster" in item else "gpu"
    known = tuple(catalogue.cluster_names() if kind == "cluster" else catalogue.gpu_names())
    name = _hardware_file(item, where) or str(item.get(kind))
    if kind not in item or not (catalogue.is_path(name) or name in known):
        problems += [Problem(where, key + kind, item[kind], nearest(name, known))] if kind in item else []
        return None
    read = catalogue.cluster if kind == "cluster" else catalogue.default_cluster
    return or_none(problems, lambda: read(name))
