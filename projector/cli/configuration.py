"""A configuration file as a workload alone, for commands that need no cluster: the device is the one at hand."""

from __future__ import annotations

import math

from projector import frameworks
from projector.errors import InputError, Problem, nearest
from projector.workload.loaders import detect
from projector.workload.workload import Workload

__all__ = ["workload"]


def workload(path: str) -> Workload:
    """The workload of any configuration file; devices that it does not state are the fewest that hold its groups.

    Raises :class:`InputError` with every mistake.
    """
    loaded = detect.load(path)
    framework = frameworks.find(loaded.framework)
    if framework is None:
        raise InputError([Problem(path, "framework", loaded.framework, nearest(loaded.framework, frameworks.names()))])
    recipe = loaded.recipe
    if recipe is None:
        raise InputError([Problem(path, "recipe", "nothing", "how the model is trained")])
    experts = recipe.etp * recipe.ep if loaded.model.moe else 1
    fewest = math.lcm(recipe.replica_ranks, experts * recipe.pp)
    return Workload(
        model=loaded.model,
        recipe=loaded.batched(recipe, loaded.gpus or fewest),
        gpus=loaded.gpus or fewest,
        framework=framework,
        framework_date=loaded.framework_date,
    )
