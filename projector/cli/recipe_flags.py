"""Makes the flags of recipe fields from what the fields declare, and reads what a command line says with them: typed
values, each mistake with its flag."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import chain
from typing import Any

from projector.dataclass import dataclass
from projector.errors import Problem, nearest
from projector.intake.megatron_recipe import recipe_fields
from projector.intake.values import Reader, literal
from projector.workload.fields import Field, field_of, fields
from projector.workload.model import Model
from projector.workload.model_schema import merge, model_from_mapping
from projector.workload.schema import counted, parse_recipe
from projector.workload.structure import to_mapping
from projector.workload.validate import of_model
from projector.workload.value_checks import range_problems

#: Fields whose flags stand elsewhere, with more to them than the field's value.
_OTHER_FLAGS = ("pipeline_schedule", "sync_free_stage")
#: Fields of several words that are a switch of Megatron-LM: the flag alone means what its switch means.
_SWITCHES = ("moe_grouped_gemm",)


class _Store(argparse.Action):
    """Keeps ``field key: (flag as written, its text)`` in ``namespace.stated``; ``--no-`` before a switch says false."""

    def __init__(self, option_strings: Sequence[str], dest: str, known: Field, **settings: Any) -> None:
        if known.kind is bool:
            settings["nargs"] = 0
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, **settings)
        self._key, self._switch = known.key, known.kind is bool

    def __call__(
        self, _: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        flag = option or self.option_strings[0]
        statement = (flag, not flag.startswith("--no-") if self._switch else str(values))
        namespace.stated = {**getattr(namespace, "stated", {}), self._key: statement}


def add_field_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of all recipe fields: those that most runs state, and the others, which ``--help-all`` shows."""
    parser.set_defaults(neutral=(), stated={})
    usual = parser.add_argument_group("how it is trained (each field of a recipe has a flag: --help-all)")
    further = parser.add_argument_group("further fields of a recipe")
    for known in sorted(fields(), key=lambda known: not known.essential):
        if known.key not in _OTHER_FLAGS:
            _add_flags(usual if known.essential else further, known)


def _add_flags(group: Any, known: Field) -> None:
    settings: dict[str, Any] = {"known": known, "dest": f"field {known.key}"}
    if known.kind is not bool:
        word = {int: "N", float: "X"}.get(known.kind, "NAME")
        settings["metavar"] = f"{word},…" if known.many else word
    if known.key in _SWITCHES:
        settings |= {"nargs": "?", "const": recipe_fields(Reader({known.key: True}), None)[known.key]}
    text = known.help + (f": {', '.join(known.choices)}" if known.choices else "")
    help = text if known.essential else argparse.SUPPRESS
    group.add_argument(*flags_of(known), action=_Store, help=help, **settings).whole_help = text or known.expected


def flags_of(known: Field) -> list[str]:
    """Returns the flags of a field: the short form first, as it is read in help, and those that switch it off."""
    flags = [f"--{name.replace('_', '-')}" for name in reversed(known.names)]
    return [*flags, *(f"--no-{flag[2:]}" for flag in flags)] if known.kind is bool else flags


def flag_of(known: Field) -> str:
    """Returns the flag of a field by Megatron-LM's name."""
    return f"--{known.names[0].replace('_', '-')}"


SIZES = {"micro_batch_size": 1, "global_batch_size": 1, "seq_length": 1}  # of any recipe: what a field is read beside


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """What a command line states. ``recipe``, ``model``: typed values by field (nested ones as mappings); ``hardware``:
    figures by ``gpu.KEY`` and ``cluster.KEY``; ``flags``: who stated a field; ``texts``: all of it for a reader."""

    recipe: Mapping[str, object] = field(default_factory=dict)
    model: Mapping[str, object] = field(default_factory=dict)
    hardware: Mapping[str, object] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    texts: tuple[str, ...] = ()


def read_overrides(options: argparse.Namespace, further: Mapping[str, object], problems: list[Problem]) -> Overrides:
    """Returns everything the command line says of fields; ``further``: ``KEY=VALUE`` arguments that no file takes.
    Mistakes are added to ``problems``."""
    recipe: dict[str, object] = {}
    model: dict[str, object] = {}
    hardware: dict[str, object] = {}
    flags: dict[str, str] = {}
    texts: list[str] = []
    statements = [(flag, key, value) for key, (flag, value) in options.stated.items()]
    statements += [("--set", key, value) for key, value in pairs(options.set, "--set", problems).items()]
    statements += [("command line", key, value) for key, value in further.items()]
    for where, key, value in statements:
        if key.startswith("model."):
            model = merge(model, _nested(key.split(".")[1:], literal(value)))
        elif key.startswith(("gpu.", "cluster.")):
            hardware[key] = literal(value)
            continue
        else:
            known = field_of(key)
            if known is None:
                names = list(dict.fromkeys(name for each in fields() for name in (each.key, *each.names)))
                problems.append(Problem(where, key, value, f"a recipe field; {nearest(key, names)}"))
                continue
            flags[known.key] = where
            typed = typed_value(known, value)
            mistakes = wrong_value(known, typed, value, where, "" if where in flags_of(known) else key)
            problems += mistakes
            recipe = recipe if mistakes else merge(recipe, _nested(known.path, typed))
        texts.append(f"{key}={value} ({where})" if where.startswith("--") else f"{key}={value}")
    return Overrides(recipe=recipe, model=model, hardware=hardware, flags=flags, texts=tuple(texts))


def pairs(texts: list[str], where: str, problems: list[Problem]) -> dict[str, object]:
    """Returns ``KEY=VALUE`` texts as a mapping; a text without ``=`` or key is a problem."""
    values: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            problems.append(Problem(where, "", text, "KEY=VALUE"))
            continue
        values[key.strip().lstrip("-").replace("-", "_")] = value.strip()
    return values


def changed_model(model: Model, overrides: Overrides, problems: list[Problem]) -> Model:
    """Returns ``model`` with the command line's overrides of its fields."""
    if not overrides.model:
        return model
    changed, mistakes = model_from_mapping(merge(to_mapping(model), overrides.model), "--set", "model.")
    problems += mistakes
    problems += chain.from_iterable(of_model(changed, "--set") if changed else ())
    return changed or model


def typed_value(known: Field, value: object) -> object:
    """Returns a text as the type of its field where it can be one, else as it stands, for the checks to refuse."""
    plain = literal(value)
    if known.many and not isinstance(plain, (list, tuple)):
        if plain in (None, "none", "[]"):
            return [] if plain else None
        parts = [part.strip() for part in str(value).split(",") if part.strip()]
        return [_scalar(known.kind, counted(known.key, part)) for part in parts]
    plain = counted(known.key, plain)
    return _scalar(known.kind, value if known.kind is str and plain is not None else plain)


def _scalar(kind: type, value: object) -> object:
    plain = value if kind is str else literal(value)
    return float(plain) if kind is float and type(plain) is int else plain


def wrong_value(known: Field, typed: object, found: object, where: str, key: str) -> list[Problem]:
    """Returns at most one problem with a value, in the words of a recipe file, at the flag."""
    name = known.path[0]
    if len(known.path) > 1:  # its other parts have flags of their own
        valid = known.many or type(typed) is known.kind
        return [] if valid else [Problem(where, key, found, known.expected)]
    _, mistakes = parse_recipe({**SIZES, name: typed}, where, "")
    mistakes = mistakes or range_problems({name: typed}, where, "")
    return [replace(problem, key=key, found=found) for problem in mistakes[:1]]


def _nested(path: list[str] | tuple[str, ...], value: object) -> dict[str, object]:
    first, *rest = path
    return {first: _nested(rest, value) if rest else value}
