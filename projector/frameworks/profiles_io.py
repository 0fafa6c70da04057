"""Reads the framework files: strict keys, inheritance by ``extends`` (mappings merged, ``rules`` appended)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from projector.errors import InputError, Problem, nearest
from projector.frameworks.types import Execution, Framework
from projector.workload.recipe import Recipe

__all__ = ["find", "load", "names"]

_FOLDER = Path(__file__).parent / "profiles"
_KEYS = (
    "title",
    "aliases",
    "extends",
    "flop_formula",
    "sources",
    "defaults",
    "execution",
    "rules",
    "uncertain",
    "published",
)
_WHEN = ("vendor", "gpu_arch", "gpu_host", "date_before", "date_from", "moe", "mla", "precision")
_RECIPE = frozenset(f.name for f in dataclasses.fields(Recipe))
_EXECUTION = frozenset(f.name for f in dataclasses.fields(Execution))


@cache
def names() -> tuple[str, ...]:
    """Every framework that has a file, sorted."""
    return tuple(sorted(p.stem for p in _FOLDER.glob("*.yaml")))


@cache
def load(name: str) -> Framework:
    """The framework of that exact name. Raises :class:`InputError` for an unknown one (nearest names) or a bad file."""
    if name not in names():
        raise InputError([Problem("framework", "name", name, nearest(name, names()))])
    return _read(_FOLDER / f"{name}.yaml")


@cache
def find(text: str) -> str | None:
    """The framework that a free text names (``"Megatron-LM (mcore)"``): by alias, else the longest alias inside it."""
    wanted = _plain(text)
    aliases = _aliases()
    if wanted in aliases:
        return aliases[wanted]
    inside = [alias for alias in aliases if len(alias) >= 4 and re.search(rf"\b{re.escape(alias)}\b", wanted)]
    return aliases[max(inside, key=len)] if inside else None


@cache
def _aliases() -> dict[str, str]:
    return {_plain(alias): name for name in names() for alias in (*load(name).aliases, name)}


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.strip().lower())


def _read(path: Path) -> Framework:
    import yaml

    raw: Mapping[str, Any] = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    problems = [Problem(path.name, k, k, nearest(k, _KEYS)) for k in raw if k not in _KEYS]
    rules = tuple(raw.get("rules", ()))
    for i, rule in enumerate(rules):
        problems += _unknown(path.name, f"rules[{i}].when", rule.get("when", {}), frozenset(_WHEN))
    for i, part in enumerate((raw, *rules)):
        place = "" if i == 0 else f"rules[{i - 1}]."
        problems += _unknown(path.name, f"{place}defaults", part.get("defaults", {}), _RECIPE)
        problems += _unknown(path.name, f"{place}execution", part.get("execution", {}), _EXECUTION)
        problems += _mistyped(path.name, f"{place}execution", part.get("execution", {}))
    problems += _unknown(path.name, "published", raw.get("published", {}), _RECIPE)
    if problems:
        raise InputError(problems)
    parent = load(raw["extends"]) if "extends" in raw else None
    return Framework(
        name=path.stem,
        title=raw["title"],
        aliases=tuple(raw.get("aliases", ())),
        defaults={**(parent.defaults if parent else {}), **raw.get("defaults", {})},
        execution={**(parent.execution if parent else {}), **raw.get("execution", {})},
        flop_formula=raw.get("flop_formula") or (parent.flop_formula if parent else ""),
        rules=(*(parent.rules if parent else ()), *rules),
        uncertain=tuple(raw.get("uncertain", parent.uncertain if parent else ())),
        published={**_inherited(parent, raw.get("defaults", {})), **raw.get("published", {})},
        sources=(*(parent.sources if parent else ()), *raw.get("sources", ())),
    )


def _inherited(parent: Framework | None, own: Mapping[str, Any]) -> dict[str, object]:
    """What published runs of the parent did, where this framework has no default of its own."""
    return {name: value for name, value in (parent.published if parent else {}).items() if name not in own}


def _mistyped(where: str, place: str, found: Mapping[str, Any]) -> list[Problem]:
    neutral = Execution()
    wanted = {k: type(getattr(neutral, k)) for k in found if k in _EXECUTION}
    return [
        Problem(where, f"{place}.{k}", found[k], f"a value of type {t.__name__}")
        for k, t in wanted.items()
        if not isinstance(found[k], t) or isinstance(found[k], bool) != (t is bool)
    ]


def _unknown(where: str, place: str, found: Mapping[str, Any], known: frozenset[str]) -> list[Problem]:
    return [Problem(where, f"{place}.{k}", k, nearest(k, tuple(known))) for k in found if k not in known]
