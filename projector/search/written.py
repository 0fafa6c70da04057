"""A configuration as files that can be started or read again: Megatron-LM's arguments, and a case of this project."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from projector.errors import InputError, Problem
from projector.io.files import write_whole
from projector.settle import launch
from projector.workload.declared import about_of
from projector.workload.layout import virtual_stages
from projector.workload.loaders import detect
from projector.workload.model_schema import model_to_mapping
from projector.workload.recipe import Recipe
from projector.workload.schema import recipe_to_mapping
from projector.workload.workload import Workload

__all__ = ["arguments", "write"]


def write(load: Workload, folder: Path, cluster: str) -> tuple[Path, ...]:
    """Writes ``case.yaml`` and, for Megatron-LM and Primus, ``megatron.yaml`` (arguments by name, without those of
    the model).

    Each is read back and must mean the same: else :class:`InputError` says which fields its words cannot say."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError([Problem("--write", "", str(folder), f"a folder ({error.strerror})")]) from None
    case = folder / "case.yaml"
    content = {
        "model": model_to_mapping(load.model),
        "cluster": cluster,
        "gpus": load.gpus,
        "framework": load.framework,
        "recipe": recipe_to_mapping(load.recipe),
    }
    write_whole(case, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    read = detect.load(case).workload()
    _same(case, load.recipe, read.recipe)
    if launch.family(load.framework) not in ("megatron", "primus"):
        return (case,)
    args = folder / "megatron.yaml"
    write_whole(args, yaml.safe_dump(arguments(load), sort_keys=False))
    found = detect.load(args, model=load.model.name).recipe
    if found is not None:
        _same(args, load.recipe, found)
    return case, args


def arguments(load: Workload) -> dict[str, Any]:
    """Megatron-LM's arguments of the recipe, by name."""
    recipe, told = load.recipe, about_of(Recipe)
    made: dict[str, Any] = {}
    for field in fields(Recipe):
        value, names = getattr(recipe, field.name), told[field.name].names.get("megatron", ())
        if names and value is not None:
            made[names[0]] = list(value) if isinstance(value, tuple) else value
    made.pop(told["vpp"].names["megatron"][0])  # what Megatron-LM works out; the other is its argument
    if recipe.vpp > 1 and recipe.pipeline_model_parallel_layout is None:
        made[told["vpp"].names["megatron"][1]] = recipe.vpp
    made[{"fp16": "fp16"}.get(recipe.precision, "bf16")] = True
    if recipe.precision in ("fp8", "mxfp8"):
        made |= {"fp8": "hybrid", "fp8_recipe": "mxfp8" if recipe.precision == "mxfp8" else recipe.fp8_recipe}
    made["use_distributed_optimizer"] = recipe.data_parallel_sharding == "optim"
    again = recipe.recompute_granularity
    if again not in (None, "none"):
        made["recompute_granularity"] = again
        if again == "selective":
            made["recompute_modules"] = list(recipe.recompute_modules or ("core_attn",))
    for name in ("pipeline_model_parallel_layout", "moe_token_dispatcher_type", "moe_flex_dispatcher_backend"):
        if getattr(recipe, name) is not None:
            made[name] = getattr(recipe, name)
    if recipe.pp > 1 and recipe.pipeline_schedule not in (None, "1f1b", "interleaved"):
        made["pipeline_schedule"] = recipe.pipeline_schedule
    return made


_EITHER = {"recompute_granularity": ("none", None), "pipeline_schedule": ("1f1b", "interleaved", None)}


def _same(path: Path, wanted: Recipe, found: Recipe) -> None:
    """That every stated field came back; words that mean what is left out count as left out."""
    found = replace(found, vpp=virtual_stages(found))  # a layout says it
    for name, words in _EITHER.items():
        if getattr(wanted, name) in words and getattr(found, name) in words:
            found = replace(found, **{name: getattr(wanted, name)})
    other = [
        field.name
        for field in fields(Recipe)
        if (value := getattr(wanted, field.name)) is not None
        and value is not False
        and getattr(found, field.name) != value
    ]
    if other:
        expected = "fields that the words of this file can say: leave them out, or hold them with --fix"
        raise InputError([Problem(str(path), ", ".join(other), "another value when it is read back", expected)])
