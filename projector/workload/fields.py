"""Lists every recipe field as flags, ``--set`` and completion see it, each part of a nested one by itself."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from projector.dataclass import dataclass
from projector.io.typed import hints, target_of
from projector.workload.field_facts import about_of
from projector.workload.recipe import Recipe
from projector.workload.value_checks import CHOICES


@dataclass(frozen=True, kw_only=True)
class Field:
    """One recipe field, or a part of one (``lora.dim``).

    ``path``: its place in a recipe mapping; ``names``: what it is called, Megatron-LM's argument first; ``also``: further
    spellings of it in a recipe; ``kind``: the type of one value; ``many``: a list of them; ``choices``: the words it may
    hold; ``essential``: most runs state it; ``unit``: what is counted.
    """

    path: tuple[str, ...]
    names: tuple[str, ...]
    also: tuple[str, ...]
    kind: type
    many: bool = False
    choices: tuple[str, ...] = ()
    help: str = ""
    essential: bool = False
    unit: str = ""

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def expected(self) -> str:
        """Returns what a value must be, in words."""
        if self.choices:
            return ("words of " if self.many else "one of ") + ", ".join(self.choices)
        one, several = _WORDS[self.kind]
        return several if self.many else one


_WORDS = {
    int: ("a whole number", "whole numbers separated by commas"),
    float: ("a number", "numbers separated by commas"),
    bool: ("true or false", "true or false"),
    str: ("a word", "words separated by commas"),
}


@cache
def fields() -> tuple[Field, ...]:
    """Returns every field of a recipe, in its order; each part of a nested one by itself."""
    return tuple(_fields_of(Recipe, ()))


@cache
def _by_name() -> Mapping[str, Field]:
    return {name: field for field in fields() for name in (field.key, *field.names)}


def field_of(name: str) -> Field | None:
    """Returns the field that ``name`` means: its own name, Megatron-LM's argument, with dashes or without."""
    return _by_name().get(name.removeprefix("recipe.").lstrip("-").replace("-", "_"))


def _fields_of(kind: Any, path: tuple[str, ...]) -> Iterator[Field]:
    for name, hint in hints(kind).items():
        place = (*path, name)
        target, _ = target_of(hint)
        if dataclasses.is_dataclass(target):
            yield from _fields_of(target, place)
            continue
        many = typing.get_origin(target) is tuple
        about = about_of(kind)[name]
        argument, also = about.names.get("megatron", ()), (*about.also, "_".join(place))
        yield Field(
            path=place,
            names=tuple(dict.fromkeys((*argument, *also))),
            also=tuple(each for each in also if (each,) != place),
            kind=typing.get_args(target)[0] if many else target,
            many=many,
            choices=CHOICES.get(name, ()),
            help=about.help,
            essential=about.essential,
            unit=about.unit,
        )
