"""Reads models and recipes from mappings, strictly, and writes them back.

A mapping's keys are the dataclass fields. An unknown key, a wrong type or an unknown word is a :class:`Problem`; all of
them are found in one pass. Nothing is guessed here: loose sources go through their own importers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields

from projector.errors import Problem
from projector.workload import amounts, zoo
from projector.workload.field_facts import about_of
from projector.workload.fields import field_of
from projector.workload.model import Model
from projector.workload.model_schema import merge, model_from_mapping
from projector.workload.recipe import Recipe
from projector.workload.structure import parse_dataclass, to_mapping
from projector.workload.value_checks import range_problems, unreported, word_problems

#: The fields of a recipe that have no default.
REQUIRED = tuple(each.name for each in fields(Recipe) if each.default is MISSING)


def parse_recipe(mapping: object, where: str, prefix: str = "recipe.") -> tuple[Recipe | None, list[Problem]]:
    """Reads a :class:`Recipe`. Returns ``(None, problems)`` where anything is wrong, else ``(recipe, [])``."""
    if isinstance(mapping, Mapping) and isinstance(domain := mapping.get("fast_domain"), Mapping):
        mapping = {**mapping, "fast_domain": ".".join(f"{name}:{ranks}" for name, ranks in domain.items())}
    repeated = list[Problem]()
    if isinstance(mapping, Mapping):
        mapping = as_fields(mapping, where, prefix, repeated)
        mapping = {key: counted(key, value) for key, value in mapping.items()}
    recipe, problems = parse_dataclass(Recipe, mapping, where, prefix)
    problems = [*repeated, *problems]
    if isinstance(mapping, Mapping):
        problems += word_problems(mapping, where, prefix)
        problems += unreported(range_problems(mapping, where, prefix), problems)
    return (None if problems else recipe), problems


def as_fields(mapping: Mapping[str, object], where: str, prefix: str, twice: list[Problem]) -> dict[str, object]:
    """Returns ``mapping`` with values under another spelling of a field (``lora_rank``) at the field's place
    (``lora.dim``); what stands under both ends in ``twice``."""
    fields = {key: dict(value) if isinstance(value, Mapping) else value for key, value in mapping.items()}
    for key in mapping:
        field = field_of(key) if isinstance(key, str) else None
        if field is None or key not in field.also:
            continue
        value, inside = fields.pop(key), fields
        for part in field.path[:-1]:
            inside = inside.setdefault(part, {})  # type: ignore[assignment]
        if not isinstance(inside, dict) or field.path[-1] in inside:
            twice.append(Problem(where, f"{prefix}{key}", value, f"one name of the field {field.key}"))
        else:
            inside[field.path[-1]] = value
    return fields


def counted(name: object, value: object) -> object:
    """Returns ``value`` of the recipe field ``name``, ``32k`` as 32,768 where the field counts tokens or samples."""
    about = about_of(Recipe).get(str(name))
    return amounts.count(value) if about and about.unit in ("tokens", "samples") else value


def parse_model(value: object, where: str, prefix: str = "model.") -> tuple[Model | None, list[Problem]]:
    """Reads a :class:`Model`: a zoo name, ``{base: <zoo name>, <field>: …}``, or a mapping of every field needed."""
    key = prefix.rstrip(".")
    if isinstance(value, str):
        if zoo_name := zoo.named(value):
            return zoo.load(zoo_name), []
        return None, [Problem(where, key, value, zoo.expected(value))]
    if not isinstance(value, Mapping):
        return None, [Problem(where, key, value, "a zoo name or a mapping of model fields")]
    stated: dict[str, object] = {str(k): v for k, v in value.items()}
    if "base" in stated:
        base = stated.pop("base")
        zoo_name = zoo.named(str(base))
        if zoo_name is None:
            return None, [Problem(where, f"{prefix}base", base, zoo.expected(str(base)))]
        stated = merge(to_mapping(zoo.load(zoo_name)), stated)
    return model_from_mapping(stated, where, prefix)
