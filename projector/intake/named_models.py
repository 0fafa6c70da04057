"""Flattens settings to dotted names and finds models by a configuration's names, for loaders of several frameworks."""

from __future__ import annotations

from collections.abc import Mapping

from projector.errors import InputError, Problem
from projector.workload import zoo
from projector.workload.model import Model


def flat(settings: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Returns nested mappings as one, keys joined by dots (``training.seq_len``)."""
    found: dict[str, object] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


#: What to say where a file means a model that the zoo has not.
OTHERS = "--model NAME|FILE: a model of the zoo, or its config.json"


def published(name: str) -> Model | None:
    """Returns the zoo's model for ``name`` of a hub or a tool, whatever the edition; None without one. In ModelScope's
    folders a dot is written as three underscores."""
    found = zoo.named(name.rstrip("/").replace("___", "."))
    return zoo.load(found) if found else None


def model_named(
    texts: tuple[str, ...], where: str, key: str, changes: Mapping[str, object], *, written: str = ""
) -> Model:
    """Returns the zoo model that the first of ``texts`` with a meaning names, with ``changes`` of fields. Raises InputError,
    which shows ``written`` (default: the first of ``texts``), where no text names a model."""
    for text in texts:
        found = zoo.find(text) if text else None
        if found is not None:
            return zoo.load(found, **changes)
    shown = written or next((text for text in texts if text), "")
    problem = Problem(where, key, shown, f"{zoo.expected(shown)}; or another one with --model")
    raise InputError([problem])
