"""Applies the environment of a launch to its workload: variables that set a field, and variables that are not modelled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from projector.intake.loaded import Loaded
from projector.intake.shell.unknown import is_known
from projector.intake.tables import table


def within(loaded: Loaded, environment: Mapping[str, str]) -> Loaded:
    """Returns ``loaded`` as it runs in ``environment``. Variables whose value only a run knows say nothing."""
    known = {name: value.strip() for name, value in environment.items() if is_known(value)}
    named = tuple(f"{name}={known[name]}: {does}" for name, does in _variables_set(known, "unmodelled"))
    assumed: tuple[str, ...] = ()
    for name, field, value in _variables_set(known, "sets"):
        if loaded.recipe is not None and getattr(loaded.recipe, field) not in (None, value):
            loaded = replace(loaded, recipe=replace(loaded.recipe, **{field: value}))
            assumed += (f"{field}={value} ({name}={known[name]})",)
    return replace(loaded, unmodelled=(*loaded.unmodelled, *named), assumed=(*loaded.assumed, *assumed))


def _variables_set(known: Mapping[str, str], kind: str) -> Iterator[tuple[Any, ...]]:
    """Yields each variable that an entry of ``tables/environment.yaml`` is about, with what stands behind its values."""
    for pattern, values, *rest in table("environment", kind):
        for name, value in known.items():
            if re.fullmatch(pattern, name) and re.fullmatch(values, value):
                yield name, *rest
