"""From fields that a framework's own words mean to a workload: what the loaders of other frameworks share."""

from __future__ import annotations

from collections.abc import Mapping

from projector.errors import InputError, Problem
from projector.intake.loaded import Loaded
from projector.intake.primus_experiment import Experiment
from projector.intake.values import Reader
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.schema import parse_recipe


def flat(settings: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested mappings as one, keys joined by dots (``training.seq_len``)."""
    found: dict[str, object] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def model_named(texts: tuple[str, ...], where: str, key: str, changes: Mapping[str, object]) -> Model:
    """The zoo model that the first text with a meaning means, with ``changes`` of its fields. Raises InputError."""
    for text in texts:
        found = zoo.find(text) if text else None
        if found is not None:
            return zoo.load(found, **changes)
    shown = next((text for text in texts if text), "")
    problem = Problem(where, key, shown, f"{zoo.expected(shown)}; or another one with --model")
    raise InputError([problem])


def built(
    experiment: Experiment,
    model: Model,
    fields: Mapping[str, object],
    reader: Reader,
    framework: str,
    *,
    assumed: tuple[str, ...] = (),
    samples_per_rank: int | None = None,
    samples_per_gpu: float | None = None,
) -> Loaded:
    """The workload of ``fields`` of a recipe (None: not stated). Raises :class:`InputError` with all that is wrong.

    Of the keys that ``reader`` did not look at only those of the experiment itself are listed as ignored.
    """
    problems = [Problem(experiment.where, key, value, expected) for key, value, expected in reader.problems]
    stated = {field: value for field, value in fields.items() if value is not None}
    if model.moe is None:
        stated = {field: value for field, value in stated.items() if field not in ("ep", "etp")}
    recipe, wrong = parse_recipe(stated, experiment.where, "")
    if recipe is None or problems:
        raise InputError([*problems, *wrong])
    return Loaded(
        model=model,
        recipe=recipe,
        gpus=experiment.gpus,
        framework=framework,
        assumed=assumed,
        ignored=tuple(sorted(set(flat(experiment.overrides)) - reader.used)),
        samples_per_rank=samples_per_rank,
        samples_per_gpu=samples_per_gpu,
    )
