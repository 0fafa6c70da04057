"""Megatron-LM's switches that are no field by themselves (``--bf16``, ``--use-distributed-optimizer``, ``--fp8-format``), as
the fields that they mean: what its command line is read by reads them here as well."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from projector.errors import InputError, Problem
from projector.intake import megatron_cli
from projector.intake.megatron_recipe import recipe_fields
from projector.intake.shell.unknown import Unknowns
from projector.intake.spelling import normal
from projector.intake.tables import table
from projector.intake.values import Reader, literal
from projector.workload.fields import field_of


def take(parsed: argparse.Namespace, rest: Sequence[str]) -> list[str]:
    """``rest`` less the switches that decide a field, which go to ``parsed.stated``, and those of Primus' launcher that no
    step feels, which go to ``parsed.neutral``. Raises :class:`InputError` where they contradict each other or another
    flag, or have a value that they cannot have."""
    stated: dict[str, tuple[str, str]] = dict(parsed.stated)
    beside = {key: literal(text) for key, (_, text) in stated.items()}
    options = _options(rest)
    said = _read(rest)
    left, problems = [], []
    for words in options:
        name = words[0].partition("=")[0]
        if known := table("primus", "launcher").get(normal(name)):
            values, why = known
            parsed.neutral += (f"{name} ({why})",)
            left += words[1 + values * ("=" not in words[0]) :]
            continue
        own = _read(words)
        keys = {*_decided({}, own), *_decided({name: said[name] for name in said if name not in own}, own)}
        flag = words[0].partition("=")[0]
        for key in sorted(keys):
            reader = Reader({**{name: value for name, value in beside.items() if name != key}, **said})
            meant = _text(recipe_fields(reader, None).get(key))
            problems += [Problem(flag, "", found, expected) for name, found, expected in reader.problems if name in own]
            before = stated.setdefault(key, (flag, meant))
            if literal(before[1]) != literal(meant):
                problems.append(Problem(flag, "", f"{key} {meant}", f"{key} {before[1]}, as {before[0]} says"))
        switch = len(words) > 1 and all(value is True for value in own.values())
        left += words[1:] if keys and switch else [] if keys else words
    if problems:
        raise InputError(dict.fromkeys(problems))
    parsed.stated = stated
    return left


def _options(words: Sequence[str]) -> list[list[str]]:
    """Each option with its values."""
    found: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not found:
            found.append([])
        found[-1].append(word)
    return found


def _decided(others: Mapping[str, object], own: Mapping[str, object]) -> tuple[str, ...]:
    """The fields that one option decides beside ``others``."""
    made, without = (recipe_fields(Reader(args), None) for args in ({**others, **own}, others))
    return tuple(key for key in made if made[key] != without.get(key) and field_of(key) is not None)


def _read(words: Sequence[str]) -> Mapping[str, object]:
    return megatron_cli.parse(words, Unknowns()).args


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
