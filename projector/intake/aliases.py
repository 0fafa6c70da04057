"""Reads settings that hold a recipe field's value as it stands, by the names and the type that the field declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from projector.intake.values import Reader
from projector.workload.field_facts import about_of
from projector.workload.fields import fields
from projector.workload.recipe import Recipe


def _word(args: Reader, *names: str) -> str | None:
    """Reads a word; ``none`` counts as unset: shells and printed defaults write it, no field read here has it as a value."""
    word = args.word(*names)
    return None if word == "none" else word


_READ: Mapping[tuple[type, bool], Callable[..., object]] = {
    (int, False): Reader.integer,
    (float, False): Reader.number,
    (bool, False): Reader.flag,
    (str, False): _word,
    (int, True): Reader.integers,
    (str, True): Reader.words,
}


def stated(args: Reader, *frameworks: str) -> dict[str, object]:
    """Returns recipe field to value (None: not stated) for each field that one of ``frameworks`` has a name for. Bad values
    go to ``args.problems``."""
    return read(args, declared(*frameworks))


def read(args: Reader, names: Mapping[str, tuple[str, ...]]) -> dict[str, object]:
    """Returns recipe field to the value, of the field's type, of the first of its ``names`` that has one, else None."""
    return {field: _kinds()[field](args, *several) for field, several in names.items()}


@cache
def declared(*frameworks: str) -> Mapping[str, tuple[str, ...]]:
    """Returns the names of ``frameworks`` by recipe field, for the fields that have one."""
    told = about_of(Recipe)
    names = {
        field: tuple(name for each in frameworks for name in told[field].names.get(each, ())) for field in _kinds()
    }
    return {field: several for field, several in names.items() if several}


@cache
def _kinds() -> Mapping[str, Callable[..., object]]:
    return {field.key: _READ[field.kind, field.many] for field in fields() if len(field.path) == 1}


@cache
def renamings(framework: str) -> Mapping[str, str]:
    """Returns Megatron-LM's argument by the name that ``framework`` has for the same recipe field."""
    told = [each for each in about_of(Recipe).values() if framework in each.names]
    return {
        name: (*each.names.get("megatron", ()), *each.derived_from)[0]
        for each in told
        for name in each.names[framework]
    }
