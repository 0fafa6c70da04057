"""Reads a configuration in this project's own words: a strict mapping of model, recipe, devices and framework.

The keys are those of one entry under ``cases`` of a suite, so that a case can move between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from projector.errors import InputError, Problem, nearest, or_none
from projector.intake import huggingface
from projector.intake.loaded import Loaded
from projector.workload.schema import parse_model, parse_recipe
from projector.workload.workload import MONTH, is_month

KEYS = ("id", "model", "recipe", "gpus", "nodes", "cluster", "gpu", "framework", "framework_date", "group", "notes")
_MOST_GPUS = 1_000_000  # as in projector.workload.validate: well above anything built


#: What a value of each key is, and in words.
_TEXT: tuple[Callable[[Any], bool], str] = (lambda value: isinstance(value, str) and bool(value.strip()), "text")
_VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("id", "cluster", "gpu", "framework", "group", "notes"), _TEXT),
    "framework_date": (lambda value: isinstance(value, str) and is_month(value), MONTH),
    **dict.fromkeys(
        ("gpus", "nodes"),
        (lambda value: type(value) is int and 1 <= value <= _MOST_GPUS, f"a whole number from 1 to {_MOST_GPUS}"),
    ),
}


def from_mapping(case: Mapping[str, Any], path: Path, *, model: Loaded | None = None) -> Loaded:
    """Returns the workload of a case file. ``model`` replaces the model that the file names.

    ``model:`` is a zoo name, ``{base: …, <field>: …}``, a full mapping, or the path of a Hugging Face ``config.json``
    beside the file. Raises :class:`InputError` with every mistake; cluster and framework are only names here.
    """
    where = str(path)
    problems = [Problem(where, str(key), key, nearest(str(key), KEYS)) for key in case if key not in KEYS]
    pairs = (("gpus", "nodes"), ("cluster", "gpu"))
    problems += [
        Problem(where, f"{first}, {second}", "both", "one of the two")
        for first, second in pairs
        if first in case and second in case
    ]
    problems += [Problem(where, key, case[key], expected) for key, (fits, expected) in _VALUES.items()
                 if key in case and not fits(case[key])]  # fmt: skip
    architecture = model or _architecture(case, path, problems)
    recipe = None
    if "recipe" in case:
        recipe, wrong = parse_recipe(case["recipe"], where)
        problems += wrong
    else:
        problems.append(Problem(where, "recipe", "nothing", "a mapping of recipe fields"))
    if problems or architecture is None:
        raise InputError(problems)
    name = case.get("cluster", case.get("gpu"))
    return Loaded(
        model=architecture.model,
        recipe=recipe,
        gpus=case.get("gpus"),
        nodes=case.get("nodes"),
        framework=str(case.get("framework", "megatron-lm")),
        framework_date=str(case.get("framework_date", "")),
        etp_stated=isinstance(case["recipe"], Mapping) and "etp" in case["recipe"],
        cluster=None if name is None else _beside(str(name), path),
        assumed=() if "framework" in case else ("framework=megatron-lm",),
        ignored=architecture.ignored,
        unmodelled=architecture.unmodelled,
    )


def _beside(name: str, path: Path) -> str:
    """Returns the path of a hardware file: beside the case that names it, if not where the command runs."""
    file = path.parent / name
    return str(file) if name.endswith((".yaml", ".yml", ".json")) and file.is_file() else name


def _architecture(case: Mapping[str, object], path: Path, problems: list[Problem]) -> Loaded | None:
    value = case.get("model")
    if value is None:
        problems.append(Problem(str(path), "model", "nothing", "a zoo name or a mapping of model fields"))
        return None
    if isinstance(value, str) and value.endswith(".json"):
        return or_none(problems, lambda: huggingface.load(path.parent / value))
    model, wrong = parse_model(value, str(path))
    problems += wrong
    return None if model is None else Loaded(model=model)
