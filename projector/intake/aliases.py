"""Settings that hold a recipe field's value as it stands: read by the names and the type that the field declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from projector.intake.values import Reader
from projector.workload.field_facts import about_of
from projector.workload.fields import fields
from projector.workload.recipe import Recipe


def _word(args: Reader, *names: str) -> str | None:
    """A lower-case none is a word of shells and printed defaults, and of no field here that is read as it stands."""
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
    """Recipe field to value, None where no setting states it, for every field that one of ``frameworks`` has a name for.
    What is no value of the field ends in ``args.problems``."""
    return read(args, declared(*frameworks))


def read(args: Reader, names: Mapping[str, tuple[str, ...]]) -> dict[str, object]:
    """Recipe field to the value, of the field's type, of the first of its ``names`` that has one; None: none has."""
    return {field: _kinds()[field](args, *several) for field, several in names.items()}


@cache
def declared(*frameworks: str) -> Mapping[str, tuple[str, ...]]:
    """Recipe field to what ``frameworks`` call it, where they have a name for it."""
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
    """What ``framework`` calls a recipe field, and Megatron-LM's argument for it."""
    told = [each for each in about_of(Recipe).values() if framework in each.names]
    return {
        name: (*each.names.get("megatron", ()), *each.derived_from)[0]
        for each in told
        for name in each.names[framework]
    }
