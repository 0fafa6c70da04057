"""The strategies of a mechanism: frozen dataclasses with a name, found by the file that defines them."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Self

from projector.dataclass import dataclass
from projector.errors import Problem, nearest
from projector.io.typed import hints, is_a

STRATEGY = "strategy"
"""The key of a profile that names a strategy; all other keys of its mapping are parameters."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to run a mechanism. Its fields are its parameters: ``bool``, ``int``, ``float`` or ``str``."""

    name: ClassVar[str]

    def evolve(self, parameters: Mapping[str, Any]) -> Self:
        """Returns the same strategy with other parameters."""
        return dataclasses.replace(self, **parameters)

    def carried(self, to: type[Strategy]) -> dict[str, Any]:
        """Returns the parameters of this strategy that ``to`` has as well."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(to) if hasattr(self, field.name)}


@cache
def strategies_in(name: str) -> Mapping[str, type[Strategy]]:
    """Returns the named strategies that module ``name``, or each file of package ``name``, defines, by their names."""
    mechanism = importlib.import_module(name)
    files = pkgutil.iter_modules(getattr(mechanism, "__path__", ()))
    modules = [mechanism, *(importlib.import_module(f"{name}.{file.name}") for file in files)]
    return {
        kind.name: kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Strategy)
        and kind.__module__ == module.__name__
        and "name" in vars(kind)
    }


def mistakes(where: str, place: str, kinds: Mapping[str, type[Strategy]], stated: Mapping[str, Any]) -> list[Problem]:
    """Returns the problems of a mapping that names a strategy and some of its parameters."""
    name = stated[STRATEGY]
    if name not in kinds:
        return [Problem(where, f"{place}.{STRATEGY}", name, nearest(str(name), tuple(kinds)))]
    kind: Any = kinds[name]
    types, found = hints(kind), []
    for key, value in stated.items():
        if key == STRATEGY:
            continue
        if key not in types:
            found.append(Problem(where, f"{place}.{key}", key, nearest(key, tuple(types))))
        elif not is_a(types[key], value):
            found.append(Problem(where, f"{place}.{key}", value, f"a value of type {types[key].__name__}"))
    return found
