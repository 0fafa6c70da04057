"""Reads the framework files: strict keys, inheritance by ``extends`` (mappings are merged, a strategy named anew starts
afresh, ``rules`` are appended)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from projector.errors import InputError, Problem, nearest, raise_all
from projector.frameworks.types import Framework
from projector.io.files import listed_in
from projector.mechanisms.execution import merged, problems
from projector.parameter import Parameter, read
from projector.workload.recipe import Recipe

_FOLDER = Path(__file__).parent / "profiles"
_KEYS = (
    *("title", "aliases", "extends", "flop_formula", "sources"),
    *("defaults", "execution", "rules", "uncertain", "published"),
)
_WHEN = (
    *("vendor", "gpu_arch", "gpu_host", "date_before", "date_from"),
    *("moe", "mla", "compressed", "alibi", "precision", "adapters", "transformer_impl"),
)
_RECIPE = frozenset(f.name for f in dataclasses.fields(Recipe))


@cache
def names() -> tuple[str, ...]:
    """Returns every framework that has a file, sorted."""
    return tuple(sorted(p.stem for p in _FOLDER.glob("*.yaml")))


@cache
def load(name: str) -> Framework:
    """Returns the framework of that exact name. Raises :class:`InputError` for an unknown name (with near ones) or a
    bad file."""
    if name not in names():
        raise InputError([Problem("framework", "name", name, nearest(name, names()))])
    return _read(_FOLDER / f"{name}.yaml")


def named(text: str) -> str | None:
    """Returns the framework with exactly this name or alias; :func:`find` also takes a text that contains one."""
    return _aliases().get(_plain(text))


@cache
def find(text: str) -> str | None:
    """Returns the framework that a free text names (``"Megatron-LM (mcore)"``): by alias, else the longest alias inside
    it."""
    wanted = _plain(text)
    aliases = _aliases()
    if wanted in aliases:
        return aliases[wanted]
    inside = [alias for alias in aliases if len(alias) >= 4 and re.search(rf"\b{re.escape(alias)}\b", wanted)]
    return aliases[max(inside, key=len)] if inside else None


@cache
def _aliases() -> dict[str, str]:
    return {
        _plain(alias): name for name in names() for alias in (*listed_in(_FOLDER / f"{name}.yaml", "aliases"), name)
    }


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.strip().lower())


def _read(path: Path) -> Framework:
    raw = _mapping(path)
    wrong = [Problem(path.name, k, k, nearest(k, _KEYS)) for k in raw if k not in _KEYS]
    parent = load(raw["extends"]) if "extends" in raw else None
    execution = merged(parent.execution if parent else {}, {})
    own, rules = raw.get("defaults", {}), tuple(raw.get("rules", ()))
    constants = dict(_constants(raw, path.name, "", wrong))
    for i, rule in enumerate(rules):
        when = ",".join(f"{key}={_words(value)}" for key, value in rule.get("when", {}).items())
        constants |= {f"when.{when}.{key}": each for key, each in _constants(rule, path.name, f"rules[{i}].", wrong)}
        wrong += _unknown(path.name, f"rules[{i}].when", rule.get("when", {}), frozenset(_WHEN))
    for i, part in enumerate((raw, *rules)):
        place = "" if i == 0 else f"rules[{i - 1}]."
        wrong += _unknown(path.name, f"{place}defaults", part.get("defaults", {}), _RECIPE)
        stated = part.get("execution", {})
        wrong += problems(path.name, f"{place}execution", stated, execution)
        if i == 0 and not wrong:
            execution = merged(execution, stated)
        wrong += _unknown(path.name, f"{place}published", part.get("published", {}), _RECIPE)
    raise_all(wrong)
    return Framework(
        name=path.stem,
        title=raw["title"],
        aliases=tuple(raw.get("aliases", ())),
        defaults={**(parent.defaults if parent else _neutral()), **own},
        execution=execution,
        flop_formula=raw.get("flop_formula") or (parent.flop_formula if parent else ""),
        rules=(*(_inherited(rule, own) for rule in (parent.rules if parent else ())), *rules),
        uncertain=tuple(raw.get("uncertain", parent.uncertain if parent else ())),
        published={**_unless(own, parent.published if parent else {}), **raw.get("published", {})},
        sources=(
            *(parent.sources if parent else ()),
            *(each for each in raw.get("sources", ()) if isinstance(each, str)),
        ),
        constants=constants,
    )


def _constants(
    part: Mapping[str, Any], where: str, place: str, problems: list[Problem]
) -> Iterator[tuple[str, Parameter]]:
    """Yields the numbers under ``execution`` of a file or a rule, each with the entry of its ``sources`` that covers it."""
    covered = {
        key: entry for entry in part.get("sources", ()) if isinstance(entry, Mapping) for key in entry.get("values", ())
    }
    unused = set(covered)
    for mechanism, stated in part.get("execution", {}).items():
        for name, value in stated.items() if isinstance(stated, Mapping) else ():
            key = f"{mechanism}.{name}"
            unused.discard(key)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if key in covered:
                said = {field: covered[key][field] for field in covered[key] if field not in ("title", "values")}
                cell = {"value": value, "source": covered[key].get("title"), **said}
                yield key, read(cell, where, f"{place}execution.{key}", problems)
            else:
                problems.append(Problem(where, f"{place}sources", f"nothing for {key}", "a source for every number"))
    expected = "a number that the execution beside it states"
    problems += [Problem(where, f"{place}sources", key, expected) for key in sorted(unused)]


def _words(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def _mapping(path: Path) -> Mapping[str, Any]:
    import yaml

    found: Mapping[str, Any] = yaml.load(
        path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    return found


@cache
def _neutral() -> Mapping[str, Any]:
    return _mapping(Path(__file__).parent / "neutral.yaml")


def _inherited(rule: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a rule of the parent without the defaults of which this framework has its ``own``."""
    return {**rule, **{part: _unless(own, rule[part]) for part in ("defaults", "published") if part in rule}}


def _unless(own: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, object]:
    """Returns the parent's fields ``found``, without those of which this framework has its ``own`` default."""
    return {name: value for name, value in found.items() if name not in own}


def _unknown(where: str, place: str, found: Mapping[str, Any], known: frozenset[str]) -> list[Problem]:
    return [Problem(where, f"{place}.{k}", k, nearest(k, tuple(known))) for k in found if k not in known]
