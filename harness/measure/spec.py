"""Reads the trainings of a file: a list of jobs, each the model, recipe and number of processes that a projection would
take. A file of jobs is a mapping with the key ``measure`` (a suite is one): a list of jobs, or ``{device, repeat, runs:
[jobs]}``."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from harness.measure import support
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, raise_all, unknown
from projector.hardware.types import stated
from projector.hardware.yaml_file import Reader, keys_of
from projector.io.files import read_yaml
from projector.workload import schema, validate
from projector.workload.workload import Workload

#: The profile of projector/frameworks that describes the trainer here: an eager PyTorch script.
FRAMEWORK = "pytorch"
#: The file of a rank's trace.
TRACE = "{job}.rank{rank}.trace.json.gz"
_PROFILE_NEUTRAL = ("schedule", "enabled", "export_chrome_trace")  # a trace is always written in Chrome's format
_NAME = frozenset(string.ascii_letters + string.digits + "._-")
#: TPrimat's five strategies: (tp, pp) of eight NVIDIA GPUs, its Llama's, and its Qwen's (DmitriiNikolaevAtAmd/tprimat
#: README).
STRATEGIES = {
    "maximum_performance": ((4, 1), (4, 2)),
    "truly_identical": ((4, 1), (4, 2)),
    "memory_optimized": ((4, 2), (4, 2)),
    "minimal_communication": ((1, 1), (1, 1)),
    "balanced": ((2, 1), (2, 2)),
}
LEAST_STEPS = 3  # below three steps nothing remains behind the warm-up


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training. ``workload.recipe`` states every switch that the trainer sets (:func:`support.settle`).
    ``strategy``: the word of :data:`STRATEGIES` for how it is split."""

    id: str = stated()
    workload: Workload
    steps: int = stated(LEAST_STEPS, 1_000_000, default=20)
    group: str = stated(default="")
    seed: int = stated(0, 2**31 - 1, default=1234)
    learning_rate: float = stated(1e-12, 1, default=1e-3)
    strategy: str = ""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The content of a profiler's trace of a training: torch.profiler's schedule (``wait``, ``warmup``, ``active``
    steps, ``repeat`` times, behind the timed steps) and its switches, each by the name it has there."""

    wait: int = stated(0, 1000, default=0)
    warmup: int = stated(0, 1000, default=1)
    active: int = stated(1, 1000, default=2)
    repeat: int = stated(1, 1000, default=1)
    profile_memory: bool = stated(default=False)
    with_stack: bool = stated(default=False)
    with_flops: bool = stated(default=False)
    record_shapes: bool = stated(default=True)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A list of ``jobs``, each trained ``repeat`` times in turn; ``device``: ``cpu``, ``cuda``, or empty: whatever is
    there. ``threads``: of each process on a CPU; 0: cores over processes. ``cooldown``: seconds of rest between two
    trainings. ``profile``: a profiler's trace of every training. ``optional``: trainings that the machine has no devices
    for are left out, with a word."""

    jobs: tuple[Job, ...] = ()
    repeat: int = stated(1, 100, default=1)
    device: str = stated(words=("cpu", "cuda", ""), default="")
    threads: int = stated(1, 1024, default=0)
    cooldown: int = stated(0, 3600, default=0)
    profile: Profile | None = None
    optional: bool = stated(default=False)


#: The keys of a file.
KEYS = (*keys_of(Job), "model", "recipe", "gpus")
PLAN_KEYS = (*keys_of(Plan), "profile", "runs")


def read(path: Path) -> Plan:
    """Returns the plan of a file; other keys of a suite are ignored. Raises :class:`InputError`."""
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
    raise_all(problems)
    return plan


def parse(value: object, where: str) -> tuple[Plan, list[Problem]]:
    """Returns the plan under a key ``measure`` and every mistake of it."""
    if value is None:
        return Plan(), []
    given, prefix = (value, "measure.runs") if isinstance(value, Mapping) else ({"runs": value}, "measure")
    read = Reader(given, where, "measure.")
    read.known(PLAN_KEYS)
    plan = Plan(**read.fields(Plan), profile=_profile(given.get("profile", False), where, read.problems))
    items = given.get("runs")
    if not isinstance(items, Sequence) or isinstance(items, str):
        expected = "a list of trainings, each with " + ", ".join(KEYS)
        return Plan(), [*read.problems, Problem(where, prefix, items, expected)]
    jobs = [_job(item, where, f"{prefix}[{i}]", read.problems) for i, item in enumerate(items)]
    problems = [*read.problems, *_repeated(items, where, prefix)]
    return replace(plan, jobs=tuple(job for job in jobs if job is not None)), problems


def by_strategy(plan: Plan, names: Sequence[str], where: str) -> Plan:
    """Returns a plan with every training of ``plan`` once for each strategy, on as many processes; on fewer than eight,
    tp shrinks. Raises :class:`InputError` for unknown names and for sizes that a model or a batch cannot be split into."""
    wanted = list(STRATEGIES) if "all" in names else [name.lower().replace("-", "_") for name in names]
    problems = unknown("--strategy", wanted, (*STRATEGIES, "all"))
    jobs = []
    for job, name in product(plan.jobs, [name for name in wanted if name in STRATEGIES]):
        tp, pp = STRATEGIES[name][job.workload.model.family == "qwen"]
        tp = max(size for size in (1, 2, 4) if size <= tp and (size == 1 or size * pp <= job.workload.gpus))
        recipe = replace(job.workload.recipe, tp=tp, pp=pp, vpp=1, pipeline_schedule=None)
        split = replace(job.workload, recipe=recipe)
        wrong = [*validate.problems(split, where)] or support.problems(split, where)
        problems += [replace(problem, key=f"{job.id}, {name}: {problem.key}") for problem in wrong]
        if not wrong:
            jobs.append(replace(job, id=f"{job.id}-{name}", workload=support.settle(split), strategy=name))
    raise_all(problems)
    return replace(plan, jobs=tuple(jobs))


def _profile(value: object, where: str, problems: list[Problem]) -> Profile | None:
    """Reads ``true`` or a mapping of :class:`Profile`; the schedule may be a mapping of its own, as TPrimat writes it."""
    if not isinstance(value, Mapping):
        if not isinstance(value, bool):
            expected = "true, false, or a mapping with " + ", ".join(keys_of(Profile))
            problems.append(Problem(where, "measure.profile", value, expected))
        return Profile() if value else None
    schedule = value.get("schedule", {})
    read = Reader({**value, **(schedule if isinstance(schedule, Mapping) else {})}, where, "measure.profile.")
    read.known((*keys_of(Profile), *_PROFILE_NEUTRAL))
    profile = Profile(**read.fields(Profile))
    problems += read.problems
    return None if value.get("enabled") is False or read.problems else profile


def _job(item: object, where: str, key: str, problems: list[Problem]) -> Job | None:
    if not isinstance(item, Mapping):
        problems.append(Problem(where, key, item, "a mapping with " + ", ".join(KEYS)))
        return None
    read = Reader(item, where, f"{key}.")
    read.known(KEYS)
    for name in ("model", "recipe"):
        if name not in item:
            read.fail(name, "nothing", "a value: every training has one")
    values = read.fields(Job)
    if values["id"] == item.get("id") and set(values["id"]) - _NAME:
        read.fail("id", values["id"], "a name of letters, digits, dots, dashes and underscores")
    workload, wrong = _workload(item, read.integer("gpus", 1, 1_000_000, default=1), where, f"{key}.")
    problems += [*read.problems, *wrong]
    return None if read.problems or workload is None else Job(workload=workload, **values)


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
    work = Workload(model=model, recipe=recipe, gpus=gpus, framework=FRAMEWORK)
    invalid = [*validate.problems(work, where)] or support.problems(work, where)
    problems += [replace(problem, key=key + problem.key) for problem in invalid]
    return (None, problems) if problems else (support.settle(work), [])


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
