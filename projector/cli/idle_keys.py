"""Finds what somebody stated and nothing of the run depends on: flags of recipe fields, keys of a Primus hardware file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from copy import copy
from dataclasses import fields, replace
from typing import Any

from projector.cli.inputs import Case, read_case
from projector.cli.recipe_flags import Overrides
from projector.errors import InputError, NoMeasurement, Unsupported
from projector.hardware import primus
from projector.hardware.types import Cluster
from projector.projection import Projection, project
from projector.settle.workload import settle_checked
from projector.workload.recipe import Recipe

_OPTIONAL_FIELDS = frozenset(each.name for each in fields(Recipe) if each.default is None)


def idle_keys(case: Case, options: argparse.Namespace) -> Iterator[str]:
    """Yields ``FILE: without effect on this run: KEY (why)``, found by projecting the run without each key of the file."""
    file = options.hardware_config
    if not file:
        return
    without_file = copy(options)
    without_file.hardware_config = None
    original = read_case(without_file).cluster
    figures = _step_and_collectives(case, case.cluster)
    restated, idle = [], []
    for key in primus.read(file, original).stated:
        without = primus.read(file, original, without=key).cluster
        if replace(without, sources=case.cluster.sources) == case.cluster:
            restated.append(key)
        elif _step_and_collectives(case, without) == figures:
            idle.append(f"{key} (felt by {primus.felt_by(key) or 'collectives that this run has not'})")
    if restated:
        yield f"{file}: without effect: {', '.join(restated)}: as the cluster has it"
    if idle:
        yield f"{file}: without effect on this run: {', '.join(idle)}"


def idle_flags(case: Case, projection: Projection, overrides: Overrides) -> tuple[str, ...]:
    """Returns the flags that state another value than the run would have without them, and change neither its seconds
    nor its bytes.

    The run is projected once more without each: whatever the reason is (a group of one rank, a layer kind that is not
    there, a strategy that always does so), the user hears of it.
    """
    idle = []
    recipe = case.workload.recipe
    for key, flag in overrides.flags.items():
        if key not in _OPTIONAL_FIELDS or getattr(recipe, key) is None:
            continue
        change: dict[str, Any] = {key: None}
        workload = replace(case.workload, recipe=replace(recipe, **change))
        try:
            without_flag = settle_checked(workload, case.cluster, published=False).workload.recipe
            chosen = getattr(projection.resolved.workload.recipe, key)
            if chosen == getattr(without_flag, key):
                continue
            if _figures(project(workload, case.cluster, settings=case.settings)) != _figures(projection):
                continue
        except (InputError, Unsupported, NoMeasurement):
            continue
        name = f"{key}={chosen}" if flag == "command line" else flag
        idle.append(f"{name} (nothing of this run depends on it)")
    return tuple(idle)


def _figures(projection: Projection) -> tuple[object, ...]:
    return projection.step_seconds, projection.breakdown, projection.memory.device


def _step_and_collectives(case: Case, cluster: Cluster) -> tuple[float, tuple[tuple[str, float], ...]]:
    """Returns the seconds of the step, and those of every collective."""
    projection = project(case.workload, cluster, settings=case.settings, communication=True)
    return projection.step_seconds, tuple((row.name, row.seconds) for row in projection.communication)
