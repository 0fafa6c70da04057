"""What loaders of several frameworks share: settings by dotted name, and models by what a configuration calls them."""

from __future__ import annotations

from collections.abc import Mapping

from projector.errors import InputError, Problem
from projector.workload import zoo
from projector.workload.model import Model


def flat(settings: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested mappings as one, keys joined by dots (``training.seq_len``)."""
    found: dict[str, object] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


#: What to say where a file means a model that the zoo has not.
OTHERS = "--model NAME|FILE: a model of the zoo, or its config.json"


def published(name: str, where: str, key: str, problems: list[Problem]) -> Model | None:
    """The zoo's model that ``name``, a hub's or a tool's, is but for its edition; a problem where there is none. In
    ModelScope's folders a dot is written as three underscores."""
    if found := zoo.named(name.replace("___", ".")):
        return zoo.load(found)
    problems.append(Problem(where, key, name or "nothing", OTHERS))
    return None


def model_named(
    texts: tuple[str, ...], where: str, key: str, changes: Mapping[str, object], *, written: str = ""
) -> Model:
    """The zoo model that the first text with a meaning means, with ``changes`` of its fields. Raises InputError with what is
    ``written`` (default: the first of ``texts``)."""
    for text in texts:
        found = zoo.find(text) if text else None
        if found is not None:
            return zoo.load(found, **changes)
    shown = written or next((text for text in texts if text), "")
    problem = Problem(where, key, shown, f"{zoo.expected(shown)}; or another one with --model")
    raise InputError([problem])
