"""How a framework splits experts over tensor-parallel ranks where nobody says (``etp``)."""

from __future__ import annotations

from dataclasses import replace

from projector.errors import InputError, Problem
from projector.frameworks.profiles_io import load
from projector.workload.workload import Workload


def experts_follow(workload: Workload, where: str) -> tuple[Workload, tuple[str, ...]]:
    """``workload``, whose recipe does not state ``etp``, with the framework's own, and what that assumes.

    Megatron-LM takes ``tp`` (NVIDIA/Megatron-LM@d98e8a64dd megatron/core/model_parallel_config.py, ``__post_init__``); other
    frameworks do not split experts. Raises :class:`InputError`, which blames ``where``, for GPUs that only ``etp=1`` fits.
    """
    recipe = workload.recipe
    if workload.model.moe is None or recipe.tp == 1 or load(workload.framework).defaults.get("etp") != "tp":
        return workload, ()
    whole = recipe.ep * recipe.pp
    if workload.gpus % (recipe.tp * whole) and not workload.gpus % whole:
        found = f"nothing, which is tp = {recipe.tp} in {workload.framework}"
        expected = f"etp=1, or GPUs that are a multiple of etp · ep · pp = {recipe.tp * whole}, not {workload.gpus}"
        raise InputError([Problem(where, "etp", found, expected)])
    split = replace(workload, recipe=replace(recipe, etp=recipe.tp))
    return split, (f"etp={recipe.tp} (tp, the default of {workload.framework})",)
