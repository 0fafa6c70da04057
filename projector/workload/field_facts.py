"""Declares what a field of a recipe or a model is, once: checks, flags, loaders, hints and docs are made from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from projector.dataclass import dataclass

#: What a field may change: ``layer`` the operators, replay, host time or saved tensors of a layer on one rank; ``schedule``
#: the order of actions or what stands on a stage; ``memory`` the peak; ``step`` any other seconds of a step (exchanges,
#: optimizer, clocks).
AFFECTS = ("layer", "schedule", "step", "memory")

#: A framework's name for the field is the field's own.
SAME = "="
_KEY = "about"


@dataclass(frozen=True, kw_only=True)
class About:
    """The declaration of a field. ``help``: what the field means, in half a sentence. ``affects``: see :data:`AFFECTS`.
    ``kind``: what a change of it is called where runs are compared.

    ``least`` (0 or 1; of a factor: whether it may be 0) and ``most`` bound numbers; ``choices`` are the words it may hold.
    ``names``: by framework, settings that hold the field's value as it stands, the first counts; ``derived_from``: settings
    from which a loader works it out; ``also``: further spellings here. ``essential``: most runs state it.
    """

    help: str = ""
    affects: frozenset[str] = frozenset()
    kind: str = ""
    unit: str = ""
    choices: tuple[str, ...] = ()
    least: int = 1
    most: int = 1_000_000
    names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    derived_from: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    essential: bool = False


_AS_THEY_ARE = {"unit", "choices", "least", "most", "essential"}


def about(
    help: str = "", affects: str = "", kind: str = "", *, derived_from: str = "", also: str = "", **told: Any
) -> Mapping[str, About]:
    """Returns the metadata of a dataclass field. ``told``: fields of :class:`About` as they are, and by framework its
    names. Several names, settings or effects are one text with blanks between them."""
    names = {framework: tuple(told.pop(framework).split()) for framework in [*told] if framework not in _AS_THEY_ARE}
    told |= {"derived_from": tuple(derived_from.split()), "also": tuple(also.split()), "names": names}
    return {_KEY: About(help=help, affects=frozenset(affects.split()), kind=kind, **told)}


def recipe_field(help: str, affects: str, kind: str = "", *, default: Any = None, **told: Any) -> Any:
    """Returns a dataclass field with what :func:`about` takes; without a default (``MISSING``) it must be stated."""
    return dataclasses.field(default=default, metadata=about(help, affects, kind, **told))


@cache
def about_of(kind: Any) -> Mapping[str, About]:
    """Returns what the fields of a dataclass declare, in their order; an empty declaration for a field without one."""
    declared: dict[str, About] = {}
    for field in dataclasses.fields(kind):
        about_field: About = field.metadata.get(_KEY, About())
        names = {framework: tuple(field.name if name == SAME else name for name in given)
                 for framework, given in about_field.names.items()}  # fmt: skip
        declared[field.name] = dataclasses.replace(about_field, names=names)
    return MappingProxyType(declared)
