"""Defines :class:`Loaded`, which every loader returns."""

from __future__ import annotations

from dataclasses import replace

from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Holds a workload as far as its file states it.

    ``recipe`` is None for files of an architecture alone; ``gpus`` None where the file does not say. ``assumed``:
    ``key=value`` texts of what was filled in; ``ignored``: keys that cannot change time or memory; ``unmodelled``:
    ``key=value`` texts of settings that may, and that nothing here models; ``moot``: ``key=value: why`` texts of switches
    that its framework takes and does nothing with. ``cluster``: the cluster or GPU it names;
    ``nodes``: hosts, where it counts these instead of GPUs.
    ``samples_per_rank``, ``samples_per_gpu``: samples of a data-parallel rank (torchtitan) or a device (MaxText) in a step,
    for frameworks that state no global batch. ``ran``: a trainer printed the settings, so the run exists.
    ``etp_stated``: the file itself states the recipe's ``etp``.
    """

    model: Model
    recipe: Recipe | None = None
    gpus: int | None = None
    framework: str = "megatron-lm"
    framework_date: str = ""
    cluster: str | None = None
    nodes: int | None = None
    samples_per_rank: int | None = None
    samples_per_gpu: float | None = None
    etp_stated: bool = True
    assumed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    unmodelled: tuple[str, ...] = ()
    moot: tuple[str, ...] = ()
    ran: bool = False

    def workload(self, gpus: int | None = None) -> Workload:
        """Returns the workload on ``gpus`` (default: the file's). Raises :class:`InputError` without recipe or GPUs."""
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
            recipe=self.batched(self.recipe, count),
            gpus=count,
            framework=self.framework,
            framework_date=self.framework_date,
        )

    @property
    def counts_ranks(self) -> bool:
        """Returns whether the global batch follows from the number of GPUs, so that ``recipe`` holds no stated one."""
        return self.samples_per_rank is not None or self.samples_per_gpu is not None

    def batched(self, recipe: Recipe, gpus: int) -> Recipe:
        """Returns ``recipe`` with the global batch for ``gpus``, where the batch follows from the number of GPUs."""
        if self.samples_per_rank is not None:
            ranks = max(1, gpus // (recipe.tp * recipe.pp * recipe.cp))
            return replace(recipe, global_batch_size=self.samples_per_rank * ranks)
        if self.samples_per_gpu is not None:
            return replace(recipe, global_batch_size=max(1, round(self.samples_per_gpu * gpus)))
        return recipe
