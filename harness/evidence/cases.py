"""Reads the ``cases`` list of a suite, configurations with nothing measured yet, as runs without figures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from harness.contracts.runs import Measured, MeasuredRun, Source, Stack
from harness.evidence.dataset import lacks, missing_model
from projector.errors import InputError, Problem, nearest
from projector.frameworks import experts_follow
from projector.hardware.types import Cluster
from projector.intake import case

KEYS = (*case.KEYS, "strategy")
DEFAULT_FRAMEWORK = "megatron-lm"


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


def _case(item: Mapping[str, object], where: str, key: str) -> tuple[MeasuredRun | None, list[Problem]]:
    from projector.workload import schema, validate

    problems = [Problem(where, f"{key}{k}", item[k], nearest(str(k), KEYS)) for k in item if k not in KEYS]
    problems += _text_problems(item, where, key)
    missing = [name for name in ("id", "model", "recipe") if name not in item]
    problems += [Problem(where, f"{key}{name}", "nothing", "a value: every case has one") for name in missing]
    lacking = missing_model(item.get("model"))
    parse_model = "model" in item and not lacking
    model, wrong_model = schema.parse_model(item["model"], where, f"{key}model.") if parse_model else (None, [])
    recipe, wrong_recipe = (
        schema.parse_recipe(item["recipe"], where, f"{key}recipe.") if "recipe" in item else (None, [])
    )
    cluster, wrong_cluster = _cluster(item, where, key)
    gpus, wrong_gpus = _gpus(item, cluster, where, key)
    framework, wrong_framework = _framework(item, where, key)
    problems += wrong_model + wrong_recipe + wrong_cluster + wrong_gpus + wrong_framework
    if (model is None and not lacking) or recipe is None or cluster is None or gpus is None:
        return None, problems + _range_problems(item, where, key, {p.key for p in problems})
    run = MeasuredRun(
        id=str(item.get("id")),
        source=Source(title="not measured", kind="case"),
        gpu=_hardware_file(item, where) or cluster.gpu.name,
        gpus=gpus,
        stack=Stack(framework=framework, date=str(item.get("framework_date", ""))),
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
    if model is not None and "etp" not in item["recipe"]:  # type: ignore[operator]
        try:
            run = replace(run, recipe=experts_follow(run.workload, where)[0].recipe)
        except InputError as error:
            problems += [replace(p, key=f"{key}recipe.{p.key}") for p in error.problems]
    if model is not None:
        problems += [replace(p, key=key + p.key) for p in validate.problems(run.workload, where)]
    return run, problems


def _hardware_file(item: Mapping[str, object], where: str) -> str:
    """Returns the path of the hardware file that a case names; empty where it names hardware of the catalogue."""
    from projector.hardware import catalogue, user_files

    name = str(item.get("cluster", item.get("gpu")))
    return user_files.beside(name, where) if catalogue.is_path(name) else ""


def _range_problems(item: Mapping[str, object], where: str, key: str, known: Collection[str]) -> list[Problem]:
    """Reports numbers out of range in a case that is already refused; ``known``: keys reported before."""
    from projector.workload.value_checks import range_problems

    parts = [(name, item[name]) for name in ("model", "recipe") if isinstance(item.get(name), Mapping)]
    problems = [p for name, part in parts for p in range_problems(part, where, f"{key}{name}.")]  # type: ignore[arg-type]
    return [p for p in problems if p.key not in known]


def _text_problems(item: Mapping[str, object], where: str, key: str) -> list[Problem]:
    names = ("id", "group", "strategy", "notes", "framework_date")
    return [
        Problem(where, f"{key}{name}", item[name], "text")
        for name in names
        if name in item and not (isinstance(item[name], str) and item[name])
    ] + _id_problems(item.get("id"), where, key)


def _id_problems(name: object, where: str, key: str) -> list[Problem]:
    unprintable = isinstance(name, str) and not name.isprintable()
    return [Problem(where, f"{key}id", name, "printable text in one line")] if unprintable else []


def _cluster(item: Mapping[str, object], where: str, key: str) -> tuple[Cluster | None, list[Problem]]:
    from projector.hardware import catalogue, user_files

    stated = [name for name in ("cluster", "gpu") if name in item]
    if len(stated) != 1:
        return None, [Problem(where, key.rstrip("."), " and ".join(stated) or "neither", "exactly one of cluster, gpu")]
    kind = stated[0]
    known = tuple(catalogue.cluster_names() if kind == "cluster" else catalogue.gpu_names())
    name = str(item[kind])
    if catalogue.is_path(name):
        name = user_files.beside(name, where)
    elif name not in known:
        return None, [Problem(where, f"{key}{kind}", item[kind], nearest(name, known))]
    try:
        return (catalogue.cluster(name) if kind == "cluster" else catalogue.default_cluster(name)), []
    except InputError as error:
        return None, list(error.problems)


def _gpus(
    item: Mapping[str, object], cluster: Cluster | None, where: str, key: str
) -> tuple[int | None, list[Problem]]:
    stated = [name for name in ("gpus", "nodes") if name in item]
    if len(stated) != 1:
        return None, [Problem(where, key.rstrip("."), " and ".join(stated) or "neither", "exactly one of gpus, nodes")]
    kind = stated[0]
    count = item[kind]
    if type(count) is not int or not 1 <= count <= 10_000_000:
        return None, [Problem(where, f"{key}{kind}", count, "a whole number from 1 to 10000000")]
    if kind == "gpus":
        return count, []
    return (count * cluster.gpus_per_host if cluster else None), []


def _framework(item: Mapping[str, object], where: str, key: str) -> tuple[str, list[Problem]]:
    from projector import frameworks

    name = item.get("framework", DEFAULT_FRAMEWORK)
    if name in frameworks.names():
        return str(name), []
    return "", [Problem(where, f"{key}framework", name, nearest(str(name), tuple(frameworks.names())))]
