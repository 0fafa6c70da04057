"""A configuration as the command that projects it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from projector.cli.changes import USUAL
from projector.cli.inputs import Case, read_case
from projector.cli.options import selection
from projector.cli.parser import parse
from projector.errors import InputError, Unsupported
from projector.hardware.types import Cluster
from projector.settle.workload import settled
from projector.workload.fields import Field, fields
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

#: What a projection depends on beside the recipe and the GPUs, by its place in the options.
_BESIDE = (
    *("config", "configs", "model", "cluster", "gpu", "framework", "framework_date", "hardware_config"),
    *("gemm_backend", "gpu_clock_mhz", "power_cap_watts"),
)


def words(case: Case, load: Workload, options: argparse.Namespace) -> list[str]:
    """Returns the words of ``projector performance`` that project ``load``, which differs from ``case`` in recipe and
    GPUs alone. Flags without which it would be the same are left out."""
    found = list[str]()
    for name in _BESIDE:
        if (value := getattr(options, name)) is not None:
            found += [f"--{name.replace('_', '-')}", str(value)]
    found += [
        word for name in ("args", "env") if getattr(options, name) for word in (f"--{name}", *getattr(options, name))
    ]
    found += [*options.changes, "--gpus", str(load.gpus)]
    found += [
        word for text in options.set if text.startswith(("model.", "gpu.", "cluster.")) for word in ("--set", text)
    ]
    if not options.config:
        found += [word for field in fields() if field.key in USUAL for word in _said(field, _at(load.recipe, field))]
    start = read_case(parse(selection(), found)).workload.recipe
    needed = [field for field in _needed(start, load, case.cluster) if options.config or field.key not in USUAL]
    if load.model.moe is not None and load.recipe.tp > 1:  # experts would be split like the rest
        needed += [field for field in fields() if field.key == "etp" and field not in needed]
    return [
        "projector",
        "performance",
        *found,
        *(word for each in needed for word in _said(each, _at(load.recipe, each))),
    ]


def _needed(start: Recipe, load: Workload, cluster: Cluster) -> Iterator[Field]:
    """Fields that must be said so that the recipe means what it does."""
    meant, recipe = settled(load, cluster, published=False).workload, load.recipe
    for field in fields():
        name = field.path[0]
        if getattr(recipe, name) == getattr(start, name) or _at(recipe, field) == _at(start, field):
            continue
        less = replace(recipe, **{name: getattr(start, name)})
        try:
            same = settled(replace(load, recipe=less), cluster, published=False).workload == meant
        except (InputError, Unsupported):
            same = False
        if same:
            recipe = less
        else:
            yield field


def _at(recipe: Recipe, field: Field) -> Any:
    value: Any = recipe
    for name in field.path:
        value = getattr(value, name, None)
    return value


def _said(field: Field, value: Any) -> tuple[str, ...]:
    flag = min(field.names, key=len).replace("_", "-")
    if value is None:
        return "--set", f"{field.key}=none"
    if isinstance(value, bool):
        return (f"--{flag}" if value else f"--no-{flag}",)
    return f"--{flag}", ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
