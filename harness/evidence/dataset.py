"""Reads measured runs from YAML strictly, every mistake of every file at once; :mod:`harness.evidence.run_text` writes.

The schema is the dataclasses of :mod:`harness.contracts.runs`, nested as they are; ``model`` is a zoo name, a zoo name with
changes (``{base: …, field: …}``) or a full mapping, ``recipe`` holds only what is stated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.contracts.runs import MISSING_MODEL, Measured, MeasuredRun
from harness.disk_cache import CachedValues
from harness.evidence import physics
from harness.evidence.agreement import both
from projector.errors import Problem, collecting_into, nearest, raise_all
from projector.hardware import catalogue, user_files
from projector.io.documents import parse_yaml
from projector.io.files import read_text
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.schema import parse_model, parse_recipe
from projector.workload.structure import parse_dataclass

_STATUS = ("ok", "out-of-memory")
_SHELF = CachedValues("runs", list[MeasuredRun])
_MEMORY = ("allocated", "reserved", "device")


def read(path: str | Path, *, lenient: bool = False) -> list[MeasuredRun]:
    """Reads the runs of one file, or of every ``*.yaml`` of a folder. Raises :class:`InputError` with all mistakes found.
    ``lenient``: a run whose model the zoo does not have is read, with that as its ``problem`` (:data:`MISSING_MODEL`).
    """
    files = sorted(Path(path).glob("*.yaml")) if Path(path).is_dir() else [Path(path)]
    runs: list[MeasuredRun] = []
    problems: list[Problem] = []
    for file in files:
        with collecting_into(problems):
            text = read_text(file, "a readable YAML file")
            runs += known if (known := remembered(text)) is not None else _parsed(text, str(file), lenient)
    raise_all([*problems, *_duplicate_ids(runs, "")])
    return runs


def _parsed(text: str, where: str, lenient: bool) -> list[MeasuredRun]:
    runs, problems = parse(parse_yaml(text, where), where, lenient=lenient)
    raise_all(problems)
    if not any(run.problem.startswith(MISSING_MODEL) for run in runs):
        remember(text, runs)
    return runs


def remembered(text: str) -> list[MeasuredRun] | None:
    """Returns the runs of a strict file with this text where this code has read it before, else None."""
    return _SHELF.recall(text)


def remember(text: str, runs: Sequence[MeasuredRun]) -> None:
    """Keeps the runs read from ``text`` for :func:`remembered`, unless the file names hardware files, which may change."""
    if not any(catalogue.is_path(name) for run in runs for name in (run.gpu, run.cluster) if name):
        _SHELF.keep(text, list(runs))


def is_strict(data: object) -> bool:
    """Says whether ``data`` is a list whose first record has the strict schema's ``measured`` and ``stack``."""
    first = data[0] if isinstance(data, list) and data else None
    return isinstance(first, Mapping) and "measured" in first and "stack" in first


def parse(data: object, where: str, *, lenient: bool = False) -> tuple[list[MeasuredRun], list[Problem]]:
    """Returns the runs of parsed YAML, and what is wrong with it; ``where`` names the file in the problems.

    ``lenient``: as in :func:`read`.

    A run whose figures no machine can have is read, with the reason as its ``problem`` (:mod:`harness.evidence.physics`).
    """
    if not isinstance(data, list):
        return [], [Problem(where, "", type(data).__name__, "a list of measured runs")]
    if not data:
        return [], [Problem(where, "", "an empty list", "at least one measured run")]
    runs: list[MeasuredRun] = []
    problems: list[Problem] = []
    for index, item in enumerate(data):
        run, wrong = _run(item, where, f"[{index}]", lenient)
        problems += wrong
        if run is not None:
            runs.append(run)
    return runs, problems + _duplicate_ids(runs, where)


def _duplicate_ids(runs: Sequence[MeasuredRun], where: str) -> list[Problem]:
    counts = Counter(run.id for run in runs)
    return [
        Problem(where or "measured runs", "id", name, f"unique ids ({n} rows)") for name, n in counts.items() if n > 1
    ]


def _run(item: object, where: str, key: str, lenient: bool) -> tuple[MeasuredRun | None, list[Problem]]:
    if not isinstance(item, Mapping):
        return None, [Problem(where, key, item, "a mapping")]
    label = f"{key}."
    item = {name: value for name, value in item.items() if value is not None}
    item |= {k: user_files.beside(item[k], where) for k in ("gpu", "cluster") if isinstance(item.get(k), str)}
    lacking = missing_model(item.get("model")) if lenient else ""
    run, problems = parse_dataclass(MeasuredRun, {**item, "model": None, "recipe": None}, where, label)
    parts: dict[str, Any] = {}
    parsers: dict[str, Any] = {"model": parse_model, "recipe": parse_recipe}
    for name, parse_part in parsers.items():
        if name in item and not (lacking and name == "model"):
            parts[name], wrong = parse_part(item[name], where, f"{label}{name}.")
            problems += wrong
        elif not (lacking or item.get("problem")):
            expected = "a value (a row without one needs `problem:`)"
            problems.append(Problem(where, f"{label}{name}", "nothing", expected))
    problems += _value_problems(item, where, label)
    if run is None or problems:
        return None, problems
    model: Model | None = parts.get("model")
    name = run.model_name or (model.name if model else lacking)
    measured = _with_both_speeds(run.measured, parts.get("recipe"), run.gpus)
    problem = lacks(lacking) if lacking else run.problem
    return physics.marked(replace(run, **parts, measured=measured, model_name=name, problem=problem))[0], []


def _with_both_speeds(measured: Measured, recipe: Recipe | None, gpus: int) -> Measured:
    """Adds the step time from the rate, or the rate from the step time, where only one is stated."""
    if recipe is None or not gpus:
        return measured
    tokens = recipe.global_batch_size * recipe.seq_length / gpus
    step, tgs, how = both(measured.step_seconds, measured.tgs, tokens)
    return replace(measured, step_seconds=step, tgs=tgs, derived=(*measured.derived, how)) if how else measured


def missing_model(value: object) -> str:
    """Returns the name that a ``model`` states and the zoo does not have; empty where the zoo has it."""
    name = value.get("base") if isinstance(value, Mapping) else value
    return name if isinstance(name, str) and zoo.named(name) is None else ""


def lacks(name: str) -> str:
    """Returns the ``problem`` of a run whose model has this name, which the zoo does not have."""
    return f"{MISSING_MODEL} {name} ({zoo.expected(name)})"


def _value_problems(item: Mapping[str, Any], where: str, label: str) -> list[Problem]:
    """Returns what is wrong with values of the right type."""
    excused, run_id, gpu, cluster = (item.get(name) for name in ("problem", "id", "gpu", "cluster"))
    wrong = []
    if "doubt" in item and not str(item["doubt"]).strip():
        wrong.append(("doubt", "why its own source doubts the figure, in words"))
    if isinstance(run_id, str) and not (run_id and run_id.isprintable()):
        wrong.append(("id", "printable text in one line"))
    if isinstance(gpu, str) and not catalogue.knows_gpu(gpu) and not excused:
        wrong.append(("gpu", f"{nearest(gpu, catalogue.gpu_names())}; or the path of a YAML file"))
    if isinstance(cluster, str) and not catalogue.knows_cluster(cluster):
        wrong.append(("cluster", f"{nearest(cluster, catalogue.cluster_names())}; or the path of a YAML file"))
    for name, least in (("gpus", 0 if excused else 1), ("gpus_per_node", 1)):
        if type(item.get(name)) is int and item[name] < least:
            wrong.append((name, f"a whole number of GPUs, at least {least}"))
    problems = [Problem(where, f"{label}{name}", item[name], expected) for name, expected in wrong]
    for path in (gpu, cluster):
        if isinstance(path, str) and catalogue.is_path(path) and catalogue.knows_cluster(path):
            with collecting_into(problems):
                catalogue.cluster(path)
    return problems + _figure_problems(item.get("measured"), where, f"{label}measured.", bool(excused))


def _figure_problems(measured: object, where: str, label: str, excused: bool) -> list[Problem]:
    if not isinstance(measured, Mapping):
        return []
    problems = [
        Problem(where, f"{label}{name}", measured[name], "a positive number")
        for name in ("step_seconds", "tgs", "tflops_per_gpu", "peak_memory_gib", "failed_allocation_gib")
        if isinstance(measured.get(name), (int, float)) and not 0 < measured[name] < math.inf
    ]
    if not excused and measured.get("tflops_per_gpu") and not (measured.get("step_seconds") or measured.get("tgs")):
        expected = "step_seconds or tgs beside it (frameworks count FLOP in different ways)"
        problems.append(Problem(where, f"{label}tflops_per_gpu", "no other figure of speed", expected))
    for name, known in (("status", _STATUS), ("memory_kind", _MEMORY)):
        if isinstance(measured.get(name), str) and measured[name] not in known:
            problems.append(Problem(where, f"{label}{name}", measured[name], f"one of {', '.join(known)}"))
    return problems
