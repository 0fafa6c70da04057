"""A configuration as files that can be started or read again: those of its framework, and a case of this project."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from projector import pipeline
from projector.errors import InputError, Problem
from projector.frameworks.resolve import resolve
from projector.hardware.types import Cluster
from projector.intake import detect
from projector.io.files import folder as made
from projector.io.files import write_whole
from projector.search import launchable
from projector.settle import launch
from projector.workload.layout import virtual_stages
from projector.workload.model_schema import model_to_mapping
from projector.workload.recipe import Recipe
from projector.workload.schema import recipe_to_mapping
from projector.workload.workload import Workload


def write(load: Workload, folder: Path, cluster: Cluster) -> tuple[Path, ...]:
    """Writes ``case.yaml`` and what its framework starts from: ``megatron.yaml`` (arguments by name, without those of the
    model), ``primus.yaml`` (an experiment; of models that have a published name) or ``torchtitan.toml`` (of models that are
    flavors of it).

    Each is read back and must mean the same: else :class:`InputError` says which fields its words cannot say. What the
    configuration leaves to its framework is stated where the reader of the file would take it otherwise."""
    made(folder, "--write")
    case = folder / "case.yaml"
    content = {
        "model": model_to_mapping(load.model),
        "cluster": cluster.name,
        "gpus": load.gpus,
        "framework": load.framework,
        "recipe": recipe_to_mapping(load.recipe),
    }
    write_whole(case, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    _same(case, load, detect.load(case).workload().recipe)
    kind = launch.family(load.framework)
    if kind not in _FILES or not load.model.causal:
        return (case,)  # the words of these frameworks would mean a decoder
    name, text = _FILES[kind]
    file = folder / name
    read = partial(detect.load, file, model=str(case), gpus=load.gpus if kind == "torchtitan" else None)
    write_whole(file, text(load))
    found = read().recipe
    if found is not None and (stated := _stated(load, found, cluster)):
        write_whole(file, text(replace(load, recipe=replace(load.recipe, **stated))))
        found = read().recipe
    if found is not None:
        _same(file, load, found)
    return case, file


def _stated(load: Workload, found: Recipe, cluster: Cluster) -> dict[str, Any]:
    """Fields that ``load`` leaves open and the file, as it is read, does not, with what they are for ``load``."""
    gpu, host = cluster.gpu, cluster.host
    settled, theirs = (
        resolve(each, gpu.vendor, gpu.arch, host).workload.recipe for each in (load, replace(load, recipe=found))
    )
    return {
        field.name: value
        for field in fields(Recipe)
        if getattr(load.recipe, field.name) is None
        and (value := getattr(settled, field.name)) is not None
        and getattr(theirs, field.name) != value
    }


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False)


_FILES: Mapping[str, tuple[str, Callable[[Workload], str]]] = {
    "megatron": ("megatron.yaml", lambda load: _yaml(launchable.arguments(load))),
    "primus": ("primus.yaml", lambda load: _yaml(launchable.experiment(load))),
    "torchtitan": ("torchtitan.toml", lambda load: launchable.toml(launchable.job(load))),
}


_EITHER = {"recompute_granularity": ("none", None)}


def _same(path: Path, load: Workload, found: Recipe) -> None:
    """That every stated field came back; words that mean what is left out count as left out."""
    wanted = load.recipe
    found = replace(found, vpp=virtual_stages(found))  # a layout says it
    orders = [pipeline.choose(each.pipeline_schedule, each.pp, each.vpp) for each in (wanted, found)]
    if orders[0] == orders[1]:
        found = replace(found, pipeline_schedule=wanted.pipeline_schedule)
    if launch.family(load.framework) == "torchtitan" and wanted.sequence_parallel == (wanted.tp > 1):
        found = replace(found, sequence_parallel=wanted.sequence_parallel)  # its plans of tensor parallelism say it
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
