"""A configuration file as a workload alone, for commands that need no cluster: the device is the one at hand."""

from __future__ import annotations

from projector import frameworks
from projector.errors import InputError, Problem, nearest
from projector.intake import detect
from projector.workload.workload import Workload


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
    gpus = loaded.gpus or recipe.fewest_gpus(bool(loaded.model.moe))
    return Workload(
        model=loaded.model,
        recipe=loaded.batched(recipe, gpus),
        gpus=gpus,
        framework=framework,
        framework_date=loaded.framework_date,
    )
