"""Checks whether the pipeline schedule of a workload can run on its sizes and with its recompute."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

from projector import pipeline
from projector.errors import Problem
from projector.size import Column, least, most
from projector.workload.layout import virtual_stages
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

_sizes = attrgetter("pp", "vpp", "tp", "tp2", "cp", "micro_batch_size", "global_batch_size")


def problems(workload: Workload) -> list[Problem]:
    """Returns what keeps the schedule of the recipe from running on its sizes, with keys as in an input file."""
    recipe = workload.recipe
    sizes, asked = _sizes(recipe), recipe.pipeline_schedule
    whole_numbers = {*map(type, sizes)} <= {int, Column} and least(*sizes) >= 1
    if not whole_numbers or workload.dp < 1 or (asked is not None and pipeline.find(asked) is None):
        return []  # the checks of the workload say so
    chunks_of_rank = virtual_stages(recipe)
    name = pipeline.choose(asked, recipe.pp, chunks_of_rank)
    group = recipe.microbatch_group_size_per_vp_stage
    m = most(1, workload.num_microbatches)
    wrong = pipeline.problems(name, recipe.pp, chunks_of_rank, m, group, where="")
    return [*(_as_recipe_problem(problem, recipe) for problem in wrong), *_last_group_problems(name, recipe, m)]


def _as_recipe_problem(problem: Problem, recipe: Recipe) -> Problem:
    if problem.key != "microbatches":
        return replace(problem, key=f"recipe.{problem.key}")
    expected = f"{problem.expected}, not {problem.found} micro-batches"
    return replace(problem, key="recipe.global_batch_size", found=recipe.global_batch_size, expected=expected)


def _last_group_problems(name: str, recipe: Recipe, m: int) -> list[Problem]:
    """Checks the last group of micro-batches: interleaved schedules of the frameworks refuse one that leaves ranks idle
    (Megatron-LM core/pipeline_parallel/schedules.py, check of the remainder by the group size; torch likewise)."""
    size = max(recipe.pp, recipe.microbatch_group_size_per_vp_stage or recipe.pp)
    left = m % size
    if name not in ("interleaved", "interleaved_zb") or virtual_stages(recipe) == 1 or left == 0 or left >= recipe.pp:
        return []
    expected = f"a last group of 0 or at least pp = {recipe.pp} micro-batches, not {left} ({m} in groups of {size})"
    return [Problem("", "recipe.global_batch_size", recipe.global_batch_size, expected)]


def conflict(recipe: Recipe) -> str | None:
    """Returns why the schedule that runs does not go with the recompute of the recipe; ``None`` where it does.

    A whole layer that is recomputed lives only inside its own backward: its activations are rebuilt there and freed at
    its end, so a weight gradient that is put off finds none. Keeping them until ``W`` would keep what recompute saves.
    AMD-AGI/Primus@fd1eeabb refuses the pair in its projection and falls back on whole backwards; selective recompute
    rebuilds operators whose inputs are kept, which ``W`` can use.
    """
    no_layer = recipe.recompute_method == "block" and not recipe.recompute_num_layers
    whole_layers = bool(recipe.recompute_layer_ids) or (recipe.recompute_granularity == "full" and not no_layer)
    name = pipeline.choose(recipe.pipeline_schedule, recipe.pp, virtual_stages(recipe))
    if not whole_layers or not pipeline.generator(name).split:
        return None
    return (
        "the schedule puts weight gradients off, but recompute of whole layers (recompute_granularity=full, "
        "recompute_layer_ids) frees what they need at the end of each backward: use recompute none or selective, or a "
        f"schedule with whole backwards ({', '.join(n for n in pipeline.names() if not pipeline.generator(n).split)})"
    )
