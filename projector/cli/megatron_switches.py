"""Reads Megatron-LM's switches that are no field by themselves (``--bf16``, ``--use-distributed-optimizer``,
``--fp8-format``) as the fields that they mean, with the reader of Megatron-LM's command lines."""

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
from projector.workload.field_facts import about_of
from projector.workload.fields import field_of
from projector.workload.recipe import Recipe


def take(parsed: argparse.Namespace, rest: Sequence[str]) -> list[str]:
    """Returns ``rest`` less the switches that decide a field, which go to ``parsed.stated``, and less those that say what
    others mean already and those of Primus' launcher that no step feels, which go to ``parsed.neutral``. Raises
    :class:`InputError` where switches contradict each other or another flag, or have a value that they cannot have."""
    stated: dict[str, tuple[str, str]] = dict(parsed.stated)
    stated_values = {key: literal(text) for key, (_, text) in stated.items()}
    options = _options(rest)
    all_args = _read(rest)
    together = recipe_fields(Reader(all_args), None)
    left, problems = [], []
    for words in options:
        name = words[0].partition("=")[0]
        if launcher_switch := table("primus", "launcher").get(normal(name)):
            values, why = launcher_switch
            parsed.neutral += (f"{name} ({why})",)
            left += words[1 + values * ("=" not in words[0]) :]
            continue
        args = _read(words)
        keys = {*_decided({}, args), *_decided({name: all_args[name] for name in all_args if name not in args}, args)}
        flag = words[0].partition("=")[0]
        if not keys and any(together.get(key) == value for key, value in _named(args)):
            parsed.neutral += (f"{flag} (others say the same)",)
            continue
        for key in sorted(keys):
            reader = Reader({**{name: value for name, value in stated_values.items() if name != key}, **all_args})
            value = recipe_fields(reader, None).get(key)
            value_text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            problems += [
                Problem(flag, "", found, expected) for name, found, expected in reader.problems if name in args
            ]
            earlier = stated.setdefault(key, (flag, value_text))
            if literal(earlier[1]) != literal(value_text):
                problems.append(Problem(flag, "", f"{key} {value_text}", f"{key} {earlier[1]}, as {earlier[0]} says"))
        switch = len(words) > 1 and all(value is True for value in args.values())
        left += words[1:] if keys and switch else [] if keys else words
    if problems:
        raise InputError(dict.fromkeys(problems))
    parsed.stated = stated
    return left


def _options(words: Sequence[str]) -> list[list[str]]:
    """Returns the words of each option: the option, then its values."""
    options: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not options:
            options.append([])
        options[-1].append(word)
    return options


def _decided(others: Mapping[str, object], own: Mapping[str, object]) -> tuple[str, ...]:
    """Returns the fields that the switches ``own`` decide beside ``others``."""
    decided, without = (recipe_fields(Reader(args), None) for args in ({**others, **own}, others))
    return tuple(key for key in decided if decided[key] != without.get(key) and field_of(key) is not None)


def _named(args: Mapping[str, object]) -> list[tuple[str, object]]:
    """Returns each of ``args`` by the fields that it may decide."""
    about = about_of(Recipe)
    return [(key, value) for name, value in args.items() for key, each in about.items() if name in each.derived_from]


def _read(words: Sequence[str]) -> Mapping[str, object]:
    return megatron_cli.parse(words, Unknowns()).args
