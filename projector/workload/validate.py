"""Checks a workload as a whole: numbers out of range, sizes that do not divide, words nobody knows."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields
from operator import attrgetter
from typing import Any

from projector.errors import Problem
from projector.io.typed import of_type
from projector.memo import BoundedCache, IdentityKey, cached_on, evolve, names_of
from projector.workload import layout, rules
from projector.workload.lora import LoRA
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.rule import problems as broken
from projector.workload.value_checks import LIMITS, range_problems, unreported, word_problems
from projector.workload.workload import Workload


def problems(workload: Workload, where: str = "", split: bool | None = None) -> tuple[Problem, ...]:
    """Returns every mistake of ``workload``; where there is none it can be laid out, though a model may not support it.
    ``split``: the rule for layers that do not divide, where the recipe leaves it to the framework.

    When types are wrong or numbers out of range only these are listed: what divides what means nothing then.
    """
    mistakes, sound = _value_mistakes(workload, where)
    return tuple(mistakes + together(workload, where, split) if sound else mistakes)


def together(workload: Workload, where: str = "", split: bool | None = None) -> list[Problem]:
    """Returns what does not go together in a workload of which no single value is wrong."""
    model, recipe = workload.model, workload.recipe
    of_sizes, of_layers = of_model(model, where)
    mistakes = [*of_sizes, *(of_layers or broken(rules.DIVISIONS, workload, where))]
    if not (of_sizes or of_layers):  # where a layer has no sizes, nobody can split the layers
        if split is not None and recipe.allow_uneven_pipeline_split is None:
            recipe = evolve(recipe, allow_uneven_pipeline_split=split)
        mistakes += layout.problems(model, recipe, where)
    mistakes += broken(rules.TOGETHER, workload, where)
    if recipe.tensor_parallel_algorithm or recipe.tp2 > 1 or recipe.summa_panels:
        mistakes += broken(rules.SUMMA, workload, where)
    return mistakes


def value_problems(workload: Workload) -> tuple[Problem, ...]:
    """Returns the mistakes of single values: wrong types, words that nobody knows, numbers out of range. What goes
    together is left to :func:`problems`."""
    return tuple(_value_mistakes(workload, "")[0])


def _value_mistakes(workload: Workload, where: str) -> tuple[list[Problem], bool]:
    """Returns the mistakes of single values, and whether sizes may be set against each other."""
    if known(workload):
        of_gpus = _gpu_mistakes(workload.gpus, where)
        return of_gpus, not of_gpus
    types = of_type(workload, Workload, where)
    if types and not (isinstance(getattr(workload, "model", None), Model) and isinstance(workload.recipe, Recipe)):
        return types, False
    model, recipe = workload.model, workload.recipe
    sizes, words = _values_with_parts(model), _values_with_parts(recipe)
    ranges = _gpu_mistakes(workload.gpus, where)
    ranges += [*range_problems(sizes, where, "model."), *range_problems(words, where, "recipe.")]
    mistakes = [*types, *unreported(ranges, types)]
    mistakes += [*word_problems(words, where, "recipe."), *word_problems(sizes, where, "model.")]
    if not mistakes:
        remember(workload)
    return mistakes, not (types or ranges)


LAYOUT_SIZES = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "global_batch_size", "seq_length")
PLACES = (
    *("pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "recompute_num_layers"),
)
"""Fields that say where layers stand and how many are replayed: a framework decides by whether they are stated alone."""
_sizes = attrgetter(*LAYOUT_SIZES)
_places = attrgetter(*PLACES)
_rest = attrgetter(*(f.name for f in fields(Recipe) if f.name not in (*LAYOUT_SIZES, *PLACES)))
_FORMS: BoundedCache[object] = BoundedCache(4096)
_SOUND: BoundedCache[bool] = BoundedCache(4096)
"""Models, and values of recipes without their sizes, their places apart, of which no single value is wrong. Frozen, so
they stay so."""


def known(workload: Workload) -> bool:
    """Returns whether all single values but the number of GPUs were checked before: workloads of a search differ in sizes
    alone."""
    if getattr(workload, "__dict__", _NOTHING).get(_KNOWN):
        return True
    model, recipe = getattr(workload, "model", None), getattr(workload, "recipe", None)
    if type(workload) is not Workload or type(model) is not Model or type(recipe) is not Recipe:
        return False
    plain = (type(workload.gpus), type(workload.framework), type(workload.framework_date)) == (int, str, str)
    if not plain or not plain_sizes(recipe):
        return False
    try:
        all_sound = all(key in _SOUND for key in _keys(workload))
    except TypeError:  # a value without a hash is none that was sound
        return False
    if all_sound:
        workload.__dict__[_KNOWN] = True
    return all_sound


_KNOWN, _FORM = "_known", "_form"
_NOTHING: dict[str, object] = {}


_SMALL = 1_000_000  # what every size may be, see LIMITS


def plain_sizes(recipe: Recipe) -> tuple[int, ...]:
    """Returns the :data:`LAYOUT_SIZES` of ``recipe``; nothing where one is not a whole number from 1 to 1,000,000."""
    sizes: tuple[int, ...] = _sizes(recipe)
    return sizes if {*map(type, sizes)} == {int} and min(sizes) >= 1 and max(sizes) <= _SMALL else ()


def remember(workload: Workload) -> None:
    """Remembers that no single value of ``workload`` is wrong."""
    for key in _keys(workload):
        _SOUND.get(key, lambda: True)


def _keys(workload: Workload) -> tuple[Hashable, ...]:
    places = _places(workload.recipe)
    return IdentityKey(workload.model), form(workload.recipe), (*map(type, places), *places)


def form(recipe: Recipe) -> Hashable:
    """Returns the object that stands for all recipes which differ in :data:`LAYOUT_SIZES`, and in stated :data:`PLACES`,
    alone: a key that costs nothing to compare.

    Values count with their types: 1, 1.0 and True are equal, but not equally right. Raises TypeError for a value without a
    hash.
    """
    key = recipe.__dict__.get(_FORM)
    if key is None:
        rest = *_rest(recipe), *[value is None for value in _places(recipe)]
        inside = _values(recipe.lora).values() if isinstance(recipe.lora, LoRA) else ()
        key = recipe.__dict__[_FORM] = _FORMS.get((*map(type, rest), *map(type, inside), *rest), object)
    return key


def _values_with_parts(item: Any) -> dict[str, object]:
    """Returns the values of ``item``, and those of the parts inside it (mla, moe, lora) as mappings."""
    values = _values(item)
    parts = {name: value for name, value in values.items() if hasattr(value, "__dataclass_fields__")}
    return values | {name: _values(value) for name, value in parts.items() if not isinstance(value, type)}


def _values(item: Any) -> dict[str, object]:
    return {name: getattr(item, name) for name in names_of(type(item))}  # type: ignore[arg-type]


def _gpu_mistakes(gpus: int, where: str) -> list[Problem]:
    if type(gpus) is int and 1 <= gpus <= LIMITS["gpus"]:
        return []
    return [Problem(where, "gpus", gpus, f"a whole number from 1 to {LIMITS['gpus']}")]


@cached_on(0)
def of_model(model: Model, where: str) -> tuple[list[Problem], list[Problem]]:
    """Returns the mistakes of the model alone: those of its sizes, and those of its layers."""
    alone = Workload(model=model, recipe=Recipe(micro_batch_size=1, global_batch_size=1, seq_length=1), gpus=1)
    return broken(rules.MODEL, alone, where), broken(rules.LAYERS, alone, where)
