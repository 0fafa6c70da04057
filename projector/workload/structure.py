"""Reads frozen dataclasses from mappings, strictly, and writes them back: every mistake is found in one pass."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from projector.errors import Problem, nearest
from projector.io.typed import WORDS, hints, is_a, target_of
from projector.workload.field_facts import about_of

T = TypeVar("T")


def parse_dataclass(kind: type[T], mapping: object, where: str, prefix: str) -> tuple[T | None, list[Problem]]:
    """Reads the dataclass ``kind`` strictly. Returns it, or None, and every mistake: unknown keys, missing fields,
    wrong types."""
    if not isinstance(mapping, Mapping):
        return None, [Problem(where, prefix.rstrip("."), mapping, f"a mapping of {kind.__name__} fields")]
    fields = hints(typing.cast(Any, kind))
    problems, values = list[Problem](), dict[str, Any]()
    for key, value in mapping.items():
        if key not in fields:
            field = _fields_by_name(typing.cast(Any, kind)).get(str(key))
            expected = f"the field {field}" if field else nearest(str(key), tuple(fields))
            problems.append(Problem(where, f"{prefix}{key}", value, expected))
            continue
        values[key], wrong = _convert(fields[key], value, where, f"{prefix}{key}.")
        if isinstance(wrong, list):
            problems += wrong
        elif wrong:
            problems.append(Problem(where, f"{prefix}{key}", value, wrong))
    missing = [name for name in _required(typing.cast(Any, kind)) if name not in mapping]
    expected = "a value: this field has no default"
    problems += [Problem(where, f"{prefix}{name}", "nothing", expected) for name in missing]
    return (None if problems else kind(**values)), problems


def _convert(hint: Any, value: object, where: str, prefix: str) -> tuple[object, str | list[Problem]]:
    """Returns ``value`` as the type ``hint``; the second item is empty, or what was expected, or nested problems."""
    target, optional = target_of(hint)
    if value is None and optional:
        return None, ""
    if dataclasses.is_dataclass(target) and isinstance(target, type):
        return parse_dataclass(target, value, where, prefix)
    if typing.get_origin(target) is tuple:
        element = typing.get_args(target)[0]
        if isinstance(value, (list, tuple)) and all(is_a(element, item) for item in value):
            return tuple(value), ""
        return None, f"a list of {WORDS[element]}"
    if typing.get_origin(target) is Mapping:
        element = typing.get_args(target)[1]
        if isinstance(value, Mapping) and all(element is object or is_a(element, item) for item in value.values()):
            return {str(name): item for name, item in value.items()}, ""
        return None, f"a mapping to {WORDS.get(element, 'values')}"
    if is_a(target, value):
        return (float(value) if target is float else value), ""  # type: ignore[arg-type]
    return None, WORDS[target] + (" or null" if optional else "")


@cache
def _fields_by_name(kind: Any) -> Mapping[str, str]:
    """Returns the field by each name that frameworks have for it; ``lora.dim`` is the field dim of the one in lora."""
    by_name: dict[str, str] = {}
    for field, about in about_of(kind).items():
        parts: list[Any] = [part for part in typing.get_args(hints(kind)[field]) if dataclasses.is_dataclass(part)]
        for inner in parts:
            by_name |= {name: f"{field}.{part}" for name, part in _fields_by_name(inner).items()}
        by_name |= dict.fromkeys((*(name for names in about.names.values() for name in names), *about.also), field)
    return by_name


@cache
def _required(kind: Any) -> tuple[str, ...]:
    unset = dataclasses.MISSING
    return tuple(f.name for f in dataclasses.fields(kind) if f.default is unset and f.default_factory is unset)


def to_mapping(item: Any) -> dict[str, object]:
    """Returns the fields of a dataclass that differ from their default, as plain YAML types."""
    mapping: dict[str, object] = {}
    kind: Any = type(item)
    for name, default in _defaults(kind):
        value = getattr(item, name)
        if value is default or value == default:
            continue
        if dataclasses.is_dataclass(value):
            value = to_mapping(value)
        mapping[name] = list(value) if isinstance(value, tuple) else value
    return mapping


@cache
def _defaults(kind: Any) -> tuple[tuple[str, object], ...]:
    return tuple((field.name, field.default) for field in dataclasses.fields(kind))
