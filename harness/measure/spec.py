"""What is to be trained: a list of jobs, each the model, recipe and number of processes that a projection would take.

A file of jobs is a mapping with the key ``measure`` (a suite is one): a list of jobs, or ``{device, repeat, runs: [jobs]}``.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.measure import support
from projector.errors import InputError, Problem, nearest
from projector.io.files import read_yaml
from projector.workload import model_schema, schema, validate
from projector.workload.workload import Workload

#: The profile of projector/frameworks that describes what the trainer here is: an eager PyTorch script.
FRAMEWORK = "pytorch"
#: The file of a rank's trace.
TRACE = "{job}.rank{rank}.trace.json.gz"
KEYS = ("id", "model", "recipe", "gpus", "steps", "group", "seed", "learning_rate")
PLAN_KEYS = ("device", "threads", "repeat", "optional", "runs")
_REQUIRED = ("id", "model", "recipe")
_NAME = frozenset(string.ascii_letters + string.digits + "._-")
LEAST_STEPS, _MOST_STEPS, _MOST_REPEATS = 3, 1_000_000, 100  # below three steps nothing remains behind the warm-up


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training. ``workload.recipe`` states every switch that the trainer sets (:func:`support.settle`)."""

    id: str
    workload: Workload
    steps: int = 20
    group: str = ""
    seed: int = 1234
    learning_rate: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``jobs``, each trained ``repeat`` times in turn; ``device``: ``cpu``, ``cuda``, or empty: whatever is there.

    ``threads``: of each process on a CPU; 0: cores over processes. ``profile``: a profiler's trace of every training.
    ``optional``: trainings that the machine has no devices for are left out, with a word.
    """

    jobs: tuple[Job, ...] = ()
    repeat: int = 1
    device: str = ""
    threads: int = 0
    profile: bool = False
    optional: bool = False


def read(path: Path) -> Plan:
    """The plan of a file; other keys of a suite are left to who reads suites. Raises :class:`InputError`."""
    where = str(path)
    document = read_yaml(path, "a mapping with the key measure")
    if isinstance(document, Mapping) and "measure" not in document and {"model", "recipe"} & set(document):
        document = {"measure": [{"id": path.stem, **document}]}
    if not isinstance(document, Mapping) or "measure" not in document:
        found = sorted(map(str, document)) if isinstance(document, Mapping) else type(document).__name__
        raise InputError([Problem(where, "", found, "a mapping with the key measure: a list of trainings")])
    plan, problems = parse(document["measure"], where)
    if not problems and not plan.jobs:
        problems = [Problem(where, "measure", [], "at least one training")]
    if problems:
        raise InputError(problems)
    return plan


def parse(value: object, where: str) -> tuple[Plan, list[Problem]]:
    """The plan under a key ``measure`` and every mistake of it."""
    if value is None:
        return Plan(), []
    items, repeat, threads, device, problems = value, 1, 0, "", list[Problem]()
    prefix = "measure"
    if isinstance(value, Mapping):
        problems = [
            Problem(where, f"measure.{k}", value[k], nearest(str(k), PLAN_KEYS)) for k in value if k not in PLAN_KEYS
        ]
        items, prefix = value.get("runs"), "measure.runs"
        repeat, wrong = _whole(value, "repeat", 1, 1, _MOST_REPEATS, where, "measure.")
        threads, wrong_threads = (
            _whole(value, "threads", 0, 1, 1024, where, "measure.") if "threads" in value else (0, [])
        )
        problems += wrong + wrong_threads
        device = value.get("device", "")
        if device not in ("", "cpu", "cuda"):
            problems.append(Problem(where, "measure.device", device, "cpu or cuda"))
        if not isinstance(value.get("optional", False), bool):
            problems.append(Problem(where, "measure.optional", value["optional"], "true or false"))
    if not isinstance(items, Sequence) or isinstance(items, str):
        return Plan(), [*problems, Problem(where, prefix, items, "a list of trainings, each with " + ", ".join(KEYS))]
    jobs: list[Job] = []
    for i, item in enumerate(items):
        job, wrong = _job(item, where, f"{prefix}[{i}]")
        problems += wrong
        if job is not None:
            jobs.append(job)
    problems += _repeated(items, where, prefix)
    optional = isinstance(value, Mapping) and value.get("optional") is True
    return Plan(jobs=tuple(jobs), repeat=repeat, device=str(device), threads=threads, optional=optional), problems


def to_mapping(plan: Plan) -> dict[str, object]:
    """What :func:`read` takes, in plain types."""
    runs = [
        {
            "id": job.id,
            "model": model_schema.model_to_mapping(job.workload.model),
            "recipe": schema.recipe_to_mapping(job.workload.recipe),
            "gpus": job.workload.gpus,
            "steps": job.steps,
            "group": job.group,
            "seed": job.seed,
            "learning_rate": job.learning_rate,
        }
        for job in plan.jobs
    ]
    stated = {"device": plan.device, "repeat": plan.repeat, "threads": plan.threads}
    return {"measure": {**{name: value for name, value in stated.items() if value}, "runs": runs}}


def _job(item: object, where: str, key: str) -> tuple[Job | None, list[Problem]]:
    if not isinstance(item, Mapping):
        return None, [Problem(where, key, item, "a mapping with " + ", ".join(KEYS))]
    key += "."
    problems = [Problem(where, f"{key}{k}", item[k], nearest(str(k), KEYS)) for k in item if k not in KEYS]
    problems += [
        Problem(where, f"{key}{k}", "nothing", "a value: every training has one") for k in _REQUIRED if k not in item
    ]
    name, group = item.get("id", "-"), item.get("group", "")
    if not isinstance(name, str) or not name or set(name) - _NAME:
        problems.append(Problem(where, f"{key}id", name, "a name of letters, digits, dots, dashes and underscores"))
    if not isinstance(group, str):
        problems.append(Problem(where, f"{key}group", group, "text"))
    rate = item.get("learning_rate", Job.learning_rate)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
        problems.append(Problem(where, f"{key}learning_rate", rate, "a number above 0, at most 1"))
        rate = Job.learning_rate
    steps, wrong = _whole(item, "steps", Job.steps, LEAST_STEPS, _MOST_STEPS, where, key)
    gpus, wrong_gpus = _whole(item, "gpus", 1, 1, 1_000_000, where, key)
    seed, wrong_seed = _whole(item, "seed", Job.seed, 0, 2**31 - 1, where, key)
    workload, wrong_workload = _workload(item, gpus, where, key)
    problems += wrong + wrong_gpus + wrong_seed + wrong_workload
    if problems or workload is None:
        return None, problems
    return Job(id=str(name), workload=workload, steps=steps, group=group, seed=seed, learning_rate=float(rate)), []


def _workload(item: Mapping[str, object], gpus: int, where: str, key: str) -> tuple[Workload | None, list[Problem]]:
    problems: list[Problem] = []
    model = recipe = None
    if "model" in item:
        model, problems = schema.parse_model(item["model"], where, f"{key}model.")
    if "recipe" in item:
        recipe, wrong = schema.parse_recipe(item["recipe"], where, f"{key}recipe.")
        problems = problems + wrong
    if model is None or recipe is None:
        return None, problems
    stated = Workload(model=model, recipe=recipe, gpus=gpus, framework=FRAMEWORK)
    found = [*validate.problems(stated, where)]
    found = found or support.problems(stated, where)
    problems += [replace(problem, key=key + problem.key) for problem in found]
    return (None, problems) if problems else (support.settle(stated), [])


def _whole(
    item: Mapping[str, object], name: str, default: int, low: int, high: int, where: str, prefix: str
) -> tuple[int, list[Problem]]:
    value = item.get(name, default)
    if type(value) is int and low <= value <= high:
        return value, []
    return default, [Problem(where, f"{prefix}{name}", value, f"a whole number from {low} to {high}")]


def _repeated(items: Sequence[object], where: str, prefix: str) -> list[Problem]:
    first: dict[object, int] = {}
    problems = []
    for i, item in enumerate(items):
        name = item.get("id") if isinstance(item, Mapping) else None
        if isinstance(name, str) and first.setdefault(name, i) != i:
            problems.append(
                Problem(where, f"{prefix}[{i}].id", name, f"an id that {prefix}[{first[name]}] does not have")
            )
    return problems
