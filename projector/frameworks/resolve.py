"""Fills what a recipe leaves open with the framework's defaults, and chooses how the framework executes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

from projector.errors import InputError, Problem, raise_all
from projector.frameworks.profiles_io import load
from projector.frameworks.types import Framework, Resolved
from projector.mechanisms.attention_kernels import build_month
from projector.mechanisms.execution import Execution, merged
from projector.mechanisms.fusion import MATERIALISED
from projector.memo import BoundedCache, evolve
from projector.workload.layout import virtual_stages
from projector.workload.recipe import Recipe
from projector.workload.validate import LAYOUT_SIZES, PLACES, form, value_problems
from projector.workload.workload import Workload


def resolve(
    workload: Workload,
    vendor: str = "nvidia",
    arch: str = "",
    host: str = "x86",
    published: bool = False,
    checked: bool = False,
) -> Resolved:
    """Returns a workload with every recipe field stated (but for those whose absence has a meaning of its own).

    ``vendor``, ``arch`` and ``host`` describe the device (``nvidia``/``amd``, ``hopper``, ``grace``): frameworks choose
    other kernel libraries by them. ``assumed`` lists ``field=value`` for the *uncertain* defaults used here. Raises
    :class:`InputError` for single values that are wrong, unless these were ``checked``: then sizes may be columns.
    """
    if not checked:
        raise_all(value_problems(workload))
    if published or virtual_stages(workload.recipe) != workload.recipe.vpp:
        return _made(workload, vendor, arch, host, published)
    return _alike(workload, vendor, arch, host)


def _alike(workload: Workload, vendor: str, arch: str, host: str) -> Resolved:
    """Resolves a workload by an earlier one that differs in sizes and places alone, where there is one: what a
    framework decides by sizes is in the key."""
    recipe, model = workload.recipe, workload.model
    given = workload.framework, workload.framework_date, vendor, arch, host
    alone = recipe.ep * recipe.etp == 1
    key = (*given, model, recipe.tp == 1, recipe.pp == 1, recipe.cp > 1, recipe.vpp > 1, alone, form(recipe))
    alike, unstated = _ALIKE.get(key, lambda: _first(workload, vendor, arch, host))
    sizes = dict(zip(LAYOUT_SIZES, _sizes(recipe), strict=True))
    sizes |= {name: value for name, value in zip(PLACES, _places(recipe), strict=True) if value is not None}
    if unstated:
        implied = _by_size(workload)
        sizes |= {name: implied[name] for name in unstated}
    return evolve(alike, workload=evolve(workload, recipe=evolve(alike.workload.recipe, **sizes)))


_sizes, _places = attrgetter(*LAYOUT_SIZES), attrgetter(*PLACES)
_ALIKE: BoundedCache[tuple[Resolved, tuple[str, ...]]] = BoundedCache(1024)


def _first(workload: Workload, vendor: str, arch: str, host: str) -> tuple[Resolved, tuple[str, ...]]:
    """Returns a workload resolved field by field, and the fields that follow from its sizes because nobody states them."""
    defaults, *_ = _choose(load(workload.framework), _traits(workload, vendor, arch, host))
    unstated = (name for name in _by_size(workload) if getattr(workload.recipe, name) is None)
    return _made(workload, vendor, arch, host, False), tuple(n for n in unstated if defaults.get(n) is None)


def _by_size(workload: Workload) -> dict[str, int]:
    """Returns the fields that follow from sizes where nobody states them."""
    recipe = workload.recipe
    return {"microbatch_group_size_per_vp_stage": recipe.pp, "data_parallel_shard_size": workload.dp * recipe.cp}


def _made(workload: Workload, vendor: str, arch: str, host: str, published: bool) -> Resolved:
    framework = load(workload.framework)
    defaults, behaviour, usual = _choose(framework, _traits(workload, vendor, arch, host))
    if published:
        defaults |= {**framework.published, **usual}
    recipe = _fill(workload, defaults)
    assumed = tuple(
        f"{name}={getattr(recipe, name)}"
        for name in ((*framework.uncertain, *usual) if published else ())
        if getattr(workload.recipe, name) is None and getattr(recipe, name) is not None
    )
    execution = _one(_attention(Execution.of(**behaviour).configured_by(recipe), workload, recipe, arch))
    return Resolved(workload=dataclasses.replace(workload, recipe=recipe), execution=execution, assumed=assumed)


@lru_cache(maxsize=1024)
def _one(execution: Execution) -> Execution:
    """Returns one object for all equal executions, so that caches compare it in no time."""
    return execution


def _traits(workload: Workload, vendor: str, arch: str, host: str) -> dict[str, Any]:
    model, narrow = workload.model, workload.recipe.quantised
    return {
        "vendor": vendor,
        "gpu_arch": arch,
        "gpu_host": host,
        "date": workload.framework_date,
        "moe": model.moe is not None,
        "mla": model.mla is not None,
        "compressed": model.compressed is not None,
        "alibi": model.position_embedding_type == "alibi",
        "precision": workload.recipe.precision,
        # the modules that 8- and 4-bit products need (Megatron-LM megatron/training/arguments.py, validate_args)
        "transformer_impl": workload.recipe.transformer_impl or ("transformer_engine" if narrow else None),
        "adapters": workload.recipe.lora is not None,
    }


def _choose(framework: Framework, traits: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Returns defaults, behaviour, and what published runs of this kind do that do not state it."""
    stated = {"transformer_impl": traits["transformer_impl"]} if traits["transformer_impl"] else {}
    defaults, behaviour, usual = {**framework.defaults, **stated}, dict(framework.execution), dict[str, Any]()
    for rule in framework.rules:
        now = {**traits, "transformer_impl": defaults["transformer_impl"]}
        if all(_holds(word, value, now) for word, value in rule["when"].items()):
            defaults |= {**rule.get("defaults", {}), **stated}
            usual |= rule.get("published", {})
            behaviour = merged(behaviour, rule.get("execution", {}))
    return defaults, behaviour, usual


def _holds(word: str, value: object, traits: Mapping[str, Any]) -> bool:
    if word == "date_before":
        return bool(traits["date"]) and traits["date"] < str(value)
    if word == "date_from":
        return not traits["date"] or traits["date"] >= str(value)
    found = traits[word]
    return found in value if isinstance(value, list | tuple) else found == value


def _fill(workload: Workload, defaults: Mapping[str, Any]) -> Recipe:
    recipe = workload.recipe
    stated = {f.name: getattr(recipe, f.name) for f in dataclasses.fields(Recipe)}
    chosen: dict[str, Any] = {
        name: _frozen(defaults[name]) if value is None and name in defaults else value for name, value in stated.items()
    }
    chosen |= _implied(workload, chosen)
    if workload.model.moe and recipe.ep * recipe.etp == 1:  # no token travels, so no way of travelling is chosen
        chosen |= {name: _frozen(defaults.get(name)) for name in EXCHANGE}
    return Recipe(**chosen)


#: Recipe fields for the way of tokens to the ranks of their experts.
EXCHANGE = (
    *("moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_deepep_num_sms", "moe_all_to_all_kernel"),
    *("moe_shared_expert_overlap", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute"),
)


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _implied(workload: Workload, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that follow from others: no sequence parallelism at tp 1, scaling by precision, schedule by vpp."""
    recipe = workload.recipe
    implied: dict[str, Any] = {}
    if recipe.tp == 1:
        implied |= {"sequence_parallel": False, "tp_comm_overlap": False}
    elif not chosen["sequence_parallel"]:
        implied["tp_comm_overlap"] = False
    if recipe.tensor_parallel_algorithm == "2d_sequence":
        implied |= {"cp_comm_type": "allgather", "sequence_parallel": recipe.tp > 1}
    elif recipe.tp2 > 1:
        implied |= {"sequence_parallel": recipe.tp > 1, "tp_comm_overlap": False}
    if chosen["use_turbo_attention"] and recipe.cp > 1:
        implied["cp_comm_type"] = "a2a"  # its ring group has one rank (the same file)
    if recipe.precision in ("mxfp8", "mxfp4", "nvfp4"):
        implied["fp8_recipe"] = recipe.precision
    if chosen["pipeline_schedule"] is None:
        implied["pipeline_schedule"] = "interleaved" if virtual_stages(recipe) > 1 else "1f1b"
    implied |= {name: size for name, size in _by_size(workload).items() if chosen[name] is None}
    if recipe.pipeline_model_parallel_layout is not None:
        implied["vpp"] = virtual_stages(recipe)
    if implied.get("vpp", recipe.vpp) == 1:
        implied["overlap_p2p_comm"] = False
    if chosen["recompute_granularity"] == "selective" and chosen["recompute_modules"] is None:
        # Megatron-LM's own modules checkpoint no flash attention (f77277433 megatron/model/transformer.py)
        flash = chosen["transformer_impl"] == "local" and MATERIALISED.get(chosen["attention_backend"]) is False
        implied["recompute_modules"] = () if flash else ("core_attn",)
    if chosen["recompute_granularity"] != "selective":
        implied["recompute_modules"] = ()
    return implied


_ROCM_ATTENTION = frozenset({"ck", "aiter", "aiter_a16", "aotriton", "triton"})


def _attention(execution: Execution, workload: Workload, recipe: Recipe, arch: str) -> Execution:
    """Sets the stack's date, and Primus-Turbo's attention on AMD: AITER's kernels, whose dQ atomics its scripts keep in
    fp32 on gfx942, and Triton's where a head has a learned sink (AMD-AGI/Primus
    primus/backends/megatron/core/extensions/primus_turbo.py)."""
    dated = execution.evolve(kernels={"built": build_month(workload.framework_date)})
    if not recipe.use_turbo_attention or execution.kernels.attention not in _ROCM_ATTENTION:
        return dated
    family = "triton" if workload.model.attention_sinks else "aiter_python" if arch == "gfx950" else "aiter"
    return dated.evolve(kernels={"attention": family})


def experts_follow(workload: Workload, where: str) -> tuple[Workload, tuple[str, ...]]:
    """Returns ``workload``, whose recipe does not state ``etp``, with the framework's own, and what that assumes.

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
