"""Applies flags to the recipe that a file states."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from functools import cache
from typing import Any

from projector import pipeline
from projector.cli.recipe_flags import Overrides, flag_of
from projector.errors import InputError, Problem, nearest, raise_all
from projector.intake.loaded import Loaded
from projector.plan.usual import SEQ_LENGTH
from projector.workload.fields import fields
from projector.workload.layout import virtual_stages
from projector.workload.model_schema import merge
from projector.workload.recipe import Recipe
from projector.workload.schema import REQUIRED, parse_recipe
from projector.workload.structure import to_mapping

AUTO, ALL = "auto", "all"
#: Names of Primus' projection that are no schedule of their own here (AMD-AGI/Primus@fd1eeabb, projection CLI).
_PRIMUS_NAMES = {"zerobubble": "zb_h1", "zerobubble-heuristic": "zb_2p"}
_SOLVED = "seaailab-ilp"
#: What an architecture alone is trained with where no flag says it; the batch follows once model and GPUs are known.
USUAL = {"micro_batch_size": 1, "global_batch_size": 1, "seq_length": int(SEQ_LENGTH)}


def changed(loaded: Loaded, options: argparse.Namespace, overrides: Overrides) -> Recipe:
    """Returns the recipe of the file, or of nothing, with the flags applied. Raises :class:`InputError` with everything
    that does not fit."""
    problems: list[Problem] = []
    recipe = _stated_recipe(loaded, overrides, options.config or "command line", problems)
    if recipe is None:
        raise InputError(problems)
    changes: dict[str, Any] = {"vpp": max(recipe.vpp, stated_chunks(recipe))} if "vpp" not in overrides.flags else {}
    layout, stated = recipe.pipeline_model_parallel_layout, stated_chunks(recipe)
    if "vpp" in overrides.flags and layout is not None and stated != recipe.vpp:
        expected = f"{stated}: pipeline_model_parallel_layout says where each layer is"
        problems.append(Problem(overrides.flags["vpp"], "", recipe.vpp, expected))
    changes |= _dispatcher_fields(loaded, options, problems)
    name = options.pipeline_schedule_algorithm
    if name is not None and name not in (AUTO, ALL):
        key = _normalised(name)
        schedule = "zb_ilp" if key == _SOLVED else _spellings().get(key)
        if schedule is None:
            expected = nearest(name, (AUTO, ALL, *_spellings()))
            problems.append(Problem("--pipeline-schedule-algorithm", "", name, expected))
        changes["pipeline_schedule"] = schedule
    if options.enable_zero_bubble and name in (None, AUTO):
        changes["pipeline_schedule"] = "zbv" if changes.get("vpp", recipe.vpp) == 2 else _PRIMUS_NAMES["zerobubble"]
    raise_all(problems)
    return replace(recipe, **changes)


def stated_chunks(recipe: Recipe) -> int:
    """Returns the chunks of a rank that the recipe's layout states, or ``vpp`` where the layout cannot be read."""
    try:
        return virtual_stages(recipe)
    except InputError:
        return recipe.vpp


def _stated_recipe(loaded: Loaded, overrides: Overrides, where: str, problems: list[Problem]) -> Recipe | None:
    """Returns the recipe of the file with the fields that flags state; only those fields where the file has no recipe."""
    base = to_mapping(loaded.recipe) if loaded.recipe else USUAL
    missing = [known for known in fields() if known.key in REQUIRED and known.key not in {**base, **overrides.recipe}]
    unsaid = [known for known in missing if known.key not in overrides.flags]  # the others have been reported as wrong
    problems += [Problem(where, flag_of(known), "nothing", f"a value: {known.help}") for known in unsaid]
    if missing:
        return None
    recipe, mistakes = parse_recipe(merge(base, overrides.recipe), where)
    problems += mistakes
    return recipe


def _dispatcher_fields(loaded: Loaded, options: argparse.Namespace, problems: list[Problem]) -> dict[str, Any]:
    """Returns the fields of DeepEP and sync-free stages; a stage from 1 on brings DeepEP, as in Primus-Turbo."""
    stage = options.sync_free_stage
    if not options.enable_deepep and stage is None:
        return {}
    if loaded.model.moe is None:
        flag = "--enable-deepep" if options.enable_deepep else "--sync-free-stage"
        problems.append(Problem(flag, "", loaded.model.name, "a model with experts"))
    changes: dict[str, Any] = {} if stage is None else {"sync_free_stage": stage}
    if options.enable_deepep or stage:
        changes |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
    return changes


def _normalised(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


@cache
def _spellings() -> dict[str, str]:
    known = {name: (name, *pipeline.generator(name).aliases) for name in pipeline.names()}
    return {_normalised(spelling): name for name, all_ in known.items() for spelling in all_} | _PRIMUS_NAMES
