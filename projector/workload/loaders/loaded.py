"""What every loader returns."""

from __future__ import annotations

from dataclasses import dataclass

from projector.errors import InputError, Problem
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

__all__ = ["Loaded"]


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A workload as far as its file states it.

    ``recipe`` is None for files of an architecture alone; ``gpus`` None where the file does not say. ``assumed``:
    ``key=value`` texts of what was filled in; ``ignored``: keys that say nothing about time or memory here, or that no
    field holds. ``cluster``: the cluster or GPU it names; ``nodes``: hosts, where it counts these instead of GPUs.
    """

    model: Model
    recipe: Recipe | None = None
    gpus: int | None = None
    framework: str = "megatron-lm"
    framework_date: str = ""
    cluster: str | None = None
    nodes: int | None = None
    assumed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def workload(self, gpus: int | None = None) -> Workload:
        """The workload on ``gpus`` (default: what the file says). Raises :class:`InputError` when either is missing."""
        count = gpus if gpus is not None else self.gpus
        missing = []
        if self.recipe is None:
            missing.append(Problem(self.model.name, "recipe", "nothing", "a training configuration"))
        if count is None:
            missing.append(Problem(self.model.name, "gpus", "nothing", "the number of GPUs"))
        if self.recipe is None or count is None:
            raise InputError(missing)
        return Workload(
            model=self.model,
            recipe=self.recipe,
            gpus=count,
            framework=self.framework,
            framework_date=self.framework_date,
        )
