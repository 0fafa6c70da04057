"""Checks whether values are of the types that their dataclass declares: for mappings from files and objects from Python.

Annotations may be ``int``, ``float`` (whole numbers are numbers; infinities are not), ``bool``, ``str``, a dataclass, a
tuple of one of them, a mapping from text to one of them, and each of these ``| None``.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from projector.errors import Problem
from projector.parameter import Count, Parameter

WORDS: Mapping[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_NUMBERS = (int, float, Parameter, Count)
_LARGEST = 1e300  # what is beyond overflows in the first product

_Check = Callable[[Any, str, str], list[Problem]]


def is_a(kind: Any, value: object) -> bool:
    """Returns whether a plain ``value`` is of ``kind``: ``int``, ``float``, ``bool`` or ``str``. True is no number."""
    if kind is float:
        return type(value) in _NUMBERS and -_LARGEST < value < _LARGEST  # type: ignore[operator]
    if kind is int:
        return type(value) in (int, Count) and -_LARGEST < value < _LARGEST  # type: ignore[operator]
    if kind is str:
        return isinstance(value, str)
    return type(value) is kind and (not isinstance(value, float) or -_LARGEST < value < _LARGEST)


@cache
def hints(kind: Any) -> dict[str, Any]:
    """Returns the annotation of each field of a dataclass, by name."""
    annotations = typing.get_type_hints(kind)
    return {field.name: annotations[field.name] for field in dataclasses.fields(kind)}


def of_type(item: object, kind: type, where: str, prefix: str = "") -> list[Problem]:
    """Returns :func:`type_problems` of ``item``, or the one problem that it is no ``kind`` at all."""
    if isinstance(item, kind):
        return type_problems(item, where, prefix)
    return [Problem(where, prefix.rstrip("."), item, f"a {kind.__name__}")]


def type_problems(item: Any, where: str, prefix: str = "") -> list[Problem]:
    """Returns a :class:`Problem` for each value inside a frozen dataclass instance that is not what its field declares."""
    if _SOUND in getattr(item, "__dict__", ()):
        return []
    problems: list[Problem] = []
    lasting = True
    for name, plain, check, fixed in _checks(typing.cast(Any, type(item))):
        value = getattr(item, name)
        kind = type(value)
        if kind not in plain or (kind in _NUMBERS and not -_LARGEST < value < _LARGEST):
            problems += check(value, where, prefix + name)
        lasting = lasting and fixed
    if not problems and lasting and hasattr(item, "__dict__"):
        item.__dict__[_SOUND] = True  # looked at once: neither the object nor what is in it can change
    return problems


_SOUND = "_types_are_sound"


@cache
def _checks(kind: Any) -> tuple[tuple[str, frozenset[type], _Check, bool], ...]:
    """Returns (field, types that need no closer look, check of a value, whether the value can never change) by field."""
    checks = []
    for name, hint in hints(kind).items():
        target, optional = target_of(hint)
        plain: set[type] = {type(None)} if optional else set()
        plain |= {*_NUMBERS} if target is float else {target} if target in WORDS else set()
        fixed = not (typing.get_origin(target) and issubclass(typing.get_origin(target), Mapping))
        checks.append((name, frozenset(plain), _check(hint), fixed))
    return tuple(checks)


def target_of(hint: Any) -> tuple[Any, bool]:
    """Returns the type that an annotation asks for, without its ``| None``, and whether it has one."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next(option for option in options if option is not type(None)), type(None) in options


def _check(hint: Any) -> _Check:
    target, optional = target_of(hint)
    tail = " or None" if optional else ""
    if isinstance(target, type) and dataclasses.is_dataclass(target):
        kind = target  # of the closure

        def nested(value: Any, where: str, key: str) -> list[Problem]:
            if isinstance(value, kind):
                return type_problems(value, where, f"{key}.")
            return [Problem(where, key, value, f"a {kind.__name__}{tail}")]

        return nested
    origin, arguments = typing.get_origin(target), typing.get_args(target)
    if origin is tuple:
        kind_of_item = arguments[0]
        items = f"a tuple, each item {WORDS.get(kind_of_item, kind_of_item)}{tail}"

        def sound(value: Any) -> bool:
            return isinstance(value, tuple) and all(is_a(kind_of_item, item) for item in value)

        return lambda value, where, key: [] if sound(value) else [Problem(where, key, value, items)]
    if origin is not None and issubclass(origin, Mapping):
        return lambda value, where, key: _entries(value, arguments[1], where, key, tail)
    expected = f"{WORDS.get(target, getattr(target, '__name__', str(target)))}{tail}"

    def plain(value: Any, where: str, key: str) -> list[Problem]:
        return [] if is_a(target, value) else [Problem(where, key, value, f"{expected} ({target.__name__})")]

    return plain


def _entries(value: Any, kind: Any, where: str, key: str, tail: str) -> list[Problem]:
    if not isinstance(value, Mapping):
        return [Problem(where, key, value, f"a mapping from text{tail}")]
    wrong = [Problem(where, key, name, "text for a key") for name in value if not isinstance(name, str)]
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return wrong + [p for name, item in value.items() for p in of_type(item, kind, where, f"{key}.{name}.")]
    word = WORDS.get(kind, f"a {kind.__name__}")
    return wrong + [Problem(where, f"{key}.{name}", item, word) for name, item in value.items() if not is_a(kind, item)]
