"""A flag for every recipe field, made from what the field says of itself; ``--set`` for what has none."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from projector.intake.megatron_recipe import recipe_fields
from projector.intake.values import Reader
from projector.workload.fields import Field, fields

#: Fields whose flags stand elsewhere, with more to them than the field's value.
_ELSEWHERE = ("pipeline_schedule", "sync_free_stage")
#: Fields of several words that are a switch of Megatron-LM: the flag alone means what its switch means.
_SWITCHES = ("moe_grouped_gemm",)


class _Store(argparse.Action):
    """Keeps ``field key: (flag as written, its text)`` in ``namespace.stated``; a switch says true, its ``--no-`` false."""

    def __init__(self, option_strings: Sequence[str], dest: str, field: Field, **settings: Any) -> None:
        if field.kind is bool:
            settings["nargs"] = 0
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, **settings)
        self._key, self._switch = field.key, field.kind is bool

    def __call__(
        self, _: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        flag = option or self.option_strings[0]
        said = (flag, not flag.startswith("--no-") if self._switch else str(values))
        namespace.stated = {**getattr(namespace, "stated", {}), self._key: said}


def add_field_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of all recipe fields: those that most runs state, and the others, which ``--help-all`` shows."""
    known = [field for field in fields() if field.key not in _ELSEWHERE]
    parser.set_defaults(stated={})
    title = "how it is trained (over what the file says; each field of a recipe has a flag: --help-all)"
    _add(parser.add_argument_group(title), [f for f in known if f.essential], hidden=False)
    _add(parser.add_argument_group("further fields of a recipe"), [f for f in known if not f.essential], hidden=True)


def add_set(group: Any) -> None:
    """``--set KEY=VALUE``."""
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any recipe field, or a model field as model.num_layers=12; may be given again",
    )


def _add(group: Any, chosen: Iterable[Field], *, hidden: bool) -> None:
    for field in chosen:
        flags = _flags(field)
        settings: dict[str, Any] = {"field": field, "dest": f"field {field.key}"}
        if field.kind is not bool:
            settings["metavar"] = _metavar(field)
        if field.key in _SWITCHES:
            settings |= {"nargs": "?", "const": recipe_fields(Reader({field.key: True}), None)[field.key]}
        text = field.help + (f": {', '.join(field.choices)}" if field.choices else "")
        action = group.add_argument(*flags, action=_Store, help=argparse.SUPPRESS if hidden else text, **settings)
        action.whole_help = text or field.expected


def _flags(field: Field) -> list[str]:
    """The short form first, as it is read in help."""
    flags = [f"--{name.replace('_', '-')}" for name in reversed(field.names)]
    return [*flags, *(f"--no-{flag[2:]}" for flag in flags)] if field.kind is bool else flags


def _metavar(field: Field) -> str:
    word = {int: "N", float: "X"}.get(field.kind, "NAME")
    return f"{word},…" if field.many else word
