"""One engine for the configurations of other tools. A dialect is a YAML file of names and values, ``dialects/NAME.yaml``:

=========  =============================================================================================================
title      what its files are, for messages
like       another dialect, whose words are this one's, too, where it has none of its own
marks      names that tell its files: all of them stand there (``a|b``: one of the two; ``a.b``: b in section a; ``a.``: a is
           a section; ``a=x*``: a holds such a text; ``!a``: a does not stand there)
sections   keys whose settings stand beside those at the top, as if they had been written there
default    what the tool takes for a setting that nobody states
renamed    names of other years as regular expressions, with today's
into       ``arguments``: what is called a recipe field below is an argument of Megatron-LM; another loader reads on
declared   the framework under whose names recipe fields declare settings that hold their value as it stands
names      more such settings: ``setting: field``; ``same``: those that are called as the field is
values     settings whose values mean fields, value by value; ``null``: not stated, ``_``: any other; a text names one of
           :data:`BUNDLES`, or is ``doubtful`` (it may change seconds or bytes, and nothing models it) or ``needed``
hook       settings that the dialect's own Python reads; ``a_{b,c}`` are two
neutral    settings that change neither seconds nor bytes; ``*`` stands for any text
doubtful   settings that may change them and that nothing models (several in one text), with the values that change nothing
another    settings of another kind of training or of layers, with the values that are none
needed     settings that a file has to state, and what they are
=========  =============================================================================================================

``reader`` is what reads a whole file (:mod:`projector.intake.detect`); any other key is a table for the dialect's Python.
Words of ``values`` stand in lower case, types by their short names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.intake import aliases
from projector.intake.spelling import normal
from projector.intake.values import section
from projector.io.files import read_yaml

_FOLDER = Path(__file__).with_name("dialects")
_OWN_TYPE = ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
_SHARDED = ("no_shard", "optim", "optim_grads", "optim_grads_params")
#: Several fields that one value of a setting means, in many dialects.
BUNDLES: Mapping[str, Mapping[str, object]] = {
    "nothing": {},
    "full recompute": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    "no recompute": {"recompute_granularity": "none"},
    "bf16 states": {"use_precision_aware_optimizer": True, **dict.fromkeys(_OWN_TYPE, "bf16")},
    "bf16 alone": {
        "use_precision_aware_optimizer": True,
        "grad_reduce_in_bf16": True,
        **dict.fromkeys(_OWN_TYPE, "bf16"),
    },
    **{f"zero {stage}": {"data_parallel_sharding": word} for stage, word in enumerate(_SHARDED)},
}
#: Of a setting that is another kind of training wherever it is stated, be it off.
STATED = object()
#: Of a setting that is another kind of training at the values behind it alone.
ONLY = object()
_PARTS = ("title", "like", "marks", "into", "sections", "default", "renamed", "declared", "names", "same", "values", "hook",
          "neutral", "doubtful", "another", "needed")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """Holds a dialect's file (keys: see the module). ``names``: field to settings, the first with a value counts."""

    name: str
    title: str
    marks: tuple[str, ...]
    sections: tuple[str, ...]
    default: Mapping[str, object]
    renamed: Mapping[str, str]
    arguments: bool
    names: Mapping[str, tuple[str, ...]]
    values: Mapping[str, Mapping[object, Any]]
    hook: frozenset[str]
    neutral: tuple[str, ...]
    doubtful: Mapping[str, tuple[object, ...]]
    another: Mapping[str, tuple[tuple[object, ...], str]]
    needed: Mapping[str, str]
    tables: Mapping[str, Any]

    @cached_property
    def deciding(self) -> frozenset[str]:
        """Returns all settings that may change what a file means, whether YAML or Python of the dialect reads them."""
        told = (name for names in self.names.values() for name in names)
        return self.hook.union(told, self.values, self.doubtful, self.another)

    @cached_property
    def heads(self) -> frozenset[str]:
        """Returns the dotted names of the sections in which this dialect knows settings."""
        places = [name.split(".")[:-1] for name in {*self.deciding, *self.neutral, *self.default}]
        return frozenset(".".join(path[:depth]) for path in places for depth in range(1, len(path) + 1))

    def today(self, name: str) -> str:
        """Returns today's name of the setting ``name``, which may be a name of another year."""
        for old, new in self.renamed.items():
            if match := re.fullmatch(old, name):
                return match.expand(new)
        return name

    def completed(self, content: Mapping[str, object], said: Mapping[str, object]) -> dict[str, object]:
        """Returns ``content`` with a setting for each field of ``said`` that ``content`` states under none of its names."""
        stated = {self.today(name) for name, value in flat(content, self) if value is not None}
        rest = {names[0]: said[field] for field, names in self.names.items() if field in said and not stated & {*names}}
        places = [key for key in content if key in self.sections and section(content, key)]
        return {**content, places[-1]: {**section(content, places[-1]), **rest}} if places else {**content, **rest}

    def fits(self, content: Mapping[str, object]) -> bool:
        """Returns whether ``content`` has all marks of this dialect; False for a dialect without marks."""
        return bool(self.marks) and fits(self.marks, content)


def loose(tokens: object) -> str:
    """Returns the doubt about samples that are not packed: nothing states their lengths, and the longest decide memory."""
    return f"samples shorter than {tokens} tokens (all are counted as that long)"


def fits(marks: Iterable[str], content: Mapping[str, object]) -> bool:
    """Returns whether ``content`` has every one of ``marks`` (see the module), however its keys are spelt."""
    return all(any(_stands(place, content) for place in mark.split("|")) for mark in marks)


def _stands(place: str, content: object) -> bool:
    if place.startswith("!"):
        return not _stands(place[1:], content)
    path, _, pattern = place.partition("=")
    key, dot, name = path.partition(".")
    held = {normal(str(key)): value for key, value in content.items()} if isinstance(content, Mapping) else {}
    if not dot:
        return key in held and (not pattern or fnmatchcase(str(held[key]), pattern))
    return _stands(place[len(key) + 1 :], held.get(key)) if name else isinstance(held.get(key), Mapping)


def names() -> tuple[str, ...]:
    """Returns the names of all dialects, sorted."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.yaml")))


@cache
def dialect(name: str) -> Dialect:
    """Reads and caches the dialect of ``dialects/NAME.yaml``."""
    content = _merged_content(name)
    arguments, declared = content.get("into") == "arguments", content.get("declared", "")
    fields: dict[str, list[str]] = {}
    if arguments:
        for setting, argument in aliases.renamings(declared).items():
            fields.setdefault(argument, []).append(setting)
    else:
        fields |= {field: list(names) for field, names in aliases.declared(declared).items()}
    for setting, field in {
        **content.get("names", {}),
        **{name: name for name in words(content.get("same", ""))},
    }.items():
        fields.setdefault(field, []).append(setting)
    return Dialect(
        name=name,
        title=content["title"],
        marks=tuple(content.get("marks", "").split()),
        sections=tuple(content.get("sections", "").split()),
        default=content.get("default", {}),
        renamed=content.get("renamed", {}),
        arguments=arguments,
        names={field: tuple(names) for field, names in fields.items()},
        values={setting: _meanings(table) for setting, table in content.get("values", {}).items()},
        hook=frozenset(words(content.get("hook", ""))),
        neutral=tuple(words(content.get("neutral", ""))),
        doubtful={name: _as_tuple(off) for told, off in content.get("doubtful", {}).items() for name in words(told)},
        another=dict(_other_kinds(content.get("another", {}))),
        needed=content.get("needed", {}),
        tables={key: table for key, table in content.items() if key not in _PARTS},
    )


def _meanings(table: Mapping[object, Any]) -> dict[object, Any]:
    return {value: BUNDLES.get(means, means) if isinstance(means, str) else means for value, means in table.items()}


def _merged_content(name: str) -> dict[str, Any]:
    """Reads a dialect's file and merges it over the file of the dialect that its ``like`` names."""
    content: dict[str, Any] = read_yaml(_FOLDER / f"{name}.yaml")
    under = _merged_content(content["like"]) if "like" in content else {}
    both = {
        key: {**value, **{name: means for name, means in under[key].items() if name not in value}}
        if isinstance(value, Mapping)
        else f"{under[key]} {value}"
        for key, value in content.items()
        if key in under and key not in ("title", "marks")
    }
    return {**under, **content, **both}


def words(text: str) -> Iterator[str]:
    """Yields the words of ``text``; ``a_{b,c}`` gives ``a_b`` and ``a_c``."""
    for word in text.split():
        before, brace, rest = word.partition("{")
        several, _, behind = rest.partition("}")
        yield from (word,) if not brace else words(" ".join(f"{before}{each}{behind}" for each in several.split(",")))


def _as_tuple(values: object) -> tuple[object, ...]:
    return tuple(values) if isinstance(values, list) else (values,)


def _other_kinds(told: Mapping[str, object]) -> Iterator[tuple[str, tuple[tuple[object, ...], str]]]:
    """Yields (setting, (values, reason)) of ``setting: values`` or ``setting: {why: text, unless: values}`` (``stated:
    true``: another kind unless it is null; ``only``: at these values alone)."""
    for several, values in told.items():
        entry = values if isinstance(values, Mapping) else {"unless": values}
        off = _as_tuple(STATED if entry.get("stated") else entry.get("unless"))
        if "only" in entry:
            off = (ONLY, *_as_tuple(entry["only"]))
        for setting in words(several):
            yield setting, (off, str(entry.get("why", "")))


def flat(content: Mapping[str, object], of: Dialect, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields (dotted name, value) as deep as the dialect has names; settings in its ``sections`` have bare names."""
    for key, value in content.items():
        name = f"{prefix}{key}".replace("-", "_")
        if isinstance(value, Mapping) and value and (name in of.heads or name in of.sections):
            yield from flat(value, of, "" if name in of.sections else f"{name}.")
        else:
            yield name, value
