"""What somebody stated and nothing of the run feels: flags of recipe fields, keys of a Primus hardware file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from copy import copy
from dataclasses import fields, replace
from typing import Any

from projector.cli.inputs import Case, read_case
from projector.cli.recipe_flags import Said
from projector.errors import InputError, NoMeasurement, Unsupported
from projector.hardware import primus
from projector.hardware.types import Cluster
from projector.projection import Projection, project
from projector.settle.workload import settled
from projector.workload.recipe import Recipe

_MAY_BE_OPEN = frozenset(each.name for each in fields(Recipe) if each.default is None)


def unfelt(case: Case, options: argparse.Namespace) -> Iterator[str]:
    """``FILE: without effect on this run: KEY (why)``: found by projecting the run without each key of the file."""
    file = options.hardware_config
    if not file:
        return
    plain = copy(options)
    plain.hardware_config = None
    before = read_case(plain).cluster
    whole = _told(case, case.cluster)
    same, unmet = [], []
    for key in primus.read(file, before).stated:
        without = primus.read(file, before, without=key).cluster
        if replace(without, sources=case.cluster.sources) == case.cluster:
            same.append(key)
        elif _told(case, without) == whole:
            unmet.append(f"{key} (felt by {primus.felt_by(key) or 'collectives that this run has not'})")
    if same:
        yield f"{file}: without effect: {', '.join(same)}: as the cluster has it"
    if unmet:
        yield f"{file}: without effect on this run: {', '.join(unmet)}"


def idle_flags(case: Case, made: Projection, told: Said) -> tuple[str, ...]:
    """Flags that say another value than the run would have without them, and change neither its seconds nor its bytes.

    Found by projecting the run once more without each of them: whatever the reason is (a group of one rank, a layer kind
    that is not there, a strategy that always does so), the user hears of it."""
    idle = []
    recipe = case.workload.recipe
    for key, flag in told.flags.items():
        if key not in _MAY_BE_OPEN or getattr(recipe, key) is None:
            continue
        opened: dict[str, Any] = {key: None}
        workload = replace(case.workload, recipe=replace(recipe, **opened))
        try:
            usual = settled(workload, case.cluster, published=False).workload.recipe
            chosen = getattr(made.resolved.workload.recipe, key)
            if chosen == getattr(usual, key) or _felt(project(workload, case.cluster, settings=case.settings)) != _felt(
                made
            ):
                continue
        except (InputError, Unsupported, NoMeasurement):
            continue
        named = f"{key}={chosen}" if flag == "command line" else flag
        idle.append(f"{named} (nothing of this run depends on it)")
    return tuple(idle)


def _felt(made: Projection) -> tuple[object, ...]:
    return made.step_seconds, made.breakdown, made.memory.device


def _told(case: Case, cluster: Cluster) -> tuple[float, tuple[tuple[str, float], ...]]:
    """The step, and the seconds of every collective."""
    made = project(case.workload, cluster, settings=case.settings, communication=True)
    return made.step_seconds, tuple((row.name, row.seconds) for row in made.communication)
