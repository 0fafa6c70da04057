"""Writes a configuration as the command that projects it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from projector.cli.changes import USUAL
from projector.cli.inputs import Case, read_case
from projector.cli.options import selection
from projector.cli.parser import parse
from projector.cli.read_back import words_of
from projector.errors import InputError, Unsupported
from projector.hardware.types import Cluster
from projector.settle.workload import settle_checked
from projector.workload.fields import Field, fields
from projector.workload.lora import LoRA
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

#: What a projection depends on beside the recipe and the GPUs, by its place in the options.
_BESIDE = (
    *("config", "configs", "model", "cluster", "gpu", "framework", "framework_date", "hardware_config"),
    *("gemm_backend", "gpu_clock_mhz", "power_cap_watts", "args", "env"),
)


def words(case: Case, load: Workload, options: argparse.Namespace) -> list[str]:
    """Returns the words of ``projector performance`` that project ``load``, which differs from ``case`` in recipe and
    GPUs alone. Flags without which it would be the same are left out."""
    arguments = [*words_of(options, _BESIDE), *options.changes, "--gpus", str(load.gpus)]
    changes = [text for text in options.set if text.startswith(("model.", "gpu.", "cluster."))]
    arguments += [word for text in changes for word in ("--set", text)]
    if not options.config:
        usual = [field for field in fields() if field.key in USUAL]
        arguments += [word for field in usual for word in _flag(field, _value(load.recipe, field))]
    stated = read_case(parse(selection(), arguments)).workload.recipe
    needed = [field for field in _needed(stated, load, case.cluster) if options.config or field.key not in USUAL]
    if load.model.moe is not None and load.recipe.tp > 1:  # experts would be split like the rest
        needed += [field for field in fields() if field.key == "etp" and field not in needed]
    stating = (word for field in needed for word in _flag(field, _value(load.recipe, field)))
    return ["projector", "performance", *arguments, *stating]


def _needed(stated: Recipe, load: Workload, cluster: Cluster) -> Iterator[Field]:
    """Yields the fields that the command must state for the recipe to mean what it does."""
    meant, recipe = settle_checked(load, cluster, published=False).workload, load.recipe
    if recipe.lora and not stated.lora:  # whoever states one of its fields has the others as they are
        stated = replace(stated, lora=LoRA(dim=0))
    for field in fields():
        name = field.path[0]
        if getattr(recipe, name) == getattr(stated, name) or _value(recipe, field) == _value(stated, field):
            continue
        shorter = replace(recipe, **{name: getattr(stated, name)})
        try:
            same = settle_checked(replace(load, recipe=shorter), cluster, published=False).workload == meant
        except (InputError, Unsupported):
            same = False
        if same:
            recipe = shorter
        else:
            yield field


def _value(recipe: Recipe, field: Field) -> Any:
    value: Any = recipe
    for name in field.path:
        value = getattr(value, name, None)
    return value


def _flag(field: Field, value: Any) -> tuple[str, ...]:
    flag = min(field.names, key=len).replace("_", "-")
    if value is None:
        return "--set", f"{field.key}=none"
    if isinstance(value, bool):
        return (f"--{flag}" if value else f"--no-{flag}",)
    return f"--{flag}", ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
