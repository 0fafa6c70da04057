"""Fills what a recipe leaves open with the framework's defaults, and chooses how the framework executes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

from projector.errors import InputError
from projector.frameworks.profiles_io import load
from projector.frameworks.types import Execution, Framework, Resolved
from projector.frameworks.unmodelled import unmodelled
from projector.io.typed import of_type
from projector.workload.layout import virtual_stages
from projector.workload.recipe import Recipe
from projector.workload.vocabulary import range_problems
from projector.workload.workload import Workload

__all__ = ["resolve"]

_OPTIONAL = frozenset(
    {
        "pipeline_model_parallel_layout",
        "decoder_first_pipeline_num_layers",
        "decoder_last_pipeline_num_layers",
        "lora",
        "recompute_layer_ids",
        "moe_expert_capacity_factor",
        "fsdp_reshard_after_forward",
        "moe_deepep_num_sms",
        "device_memory_fraction",
    }
)


_SIZES = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "global_batch_size", "seq_length")


def resolve(
    workload: Workload, vendor: str = "nvidia", arch: str = "", host: str = "x86", published: bool = False
) -> Resolved:
    """A workload with every recipe field stated (but for those whose absence has a meaning of its own).

    ``vendor``, ``arch`` and ``host`` describe the device (``nvidia``/``amd``, ``hopper``, ``grace``): frameworks choose
    other kernel libraries by them. ``assumed`` lists ``field=value`` for the *uncertain* defaults used here, and the
    switches that nothing here models. Raises :class:`InputError` for values of another
    type than their field's, and sizes below 1.
    """
    wrong = of_type(workload, Workload, "")
    if not wrong:
        sizes = {name: getattr(workload.recipe, name) for name in _SIZES}
        wrong = range_problems({"gpus": workload.gpus, "recipe": sizes}, "", "")
    if wrong:
        raise InputError(wrong)
    return _resolved(workload, vendor, arch, host, published)


@cache
def _resolved(workload: Workload, vendor: str, arch: str, host: str, published: bool) -> Resolved:
    framework = load(workload.framework)
    traits = _traits(workload, vendor, arch, host)
    defaults, behaviour = _choose(framework, traits)
    if published:
        defaults |= framework.published
    recipe = _fill(workload, defaults)
    assumed = tuple(
        f"{name}={getattr(recipe, name)}"
        for name in (framework.uncertain if published else ())
        if getattr(workload.recipe, name) is None and getattr(recipe, name) is not None
    )
    execution = _attention(_adapt(Execution(**behaviour), recipe), workload, recipe, arch)
    notes = (*assumed, *unmodelled(workload.recipe))
    return Resolved(workload=dataclasses.replace(workload, recipe=recipe), execution=execution, assumed=notes)


def _traits(workload: Workload, vendor: str, arch: str, host: str) -> dict[str, Any]:
    model = workload.model
    return {
        "vendor": vendor,
        "gpu_arch": arch,
        "gpu_host": host,
        "date": workload.framework_date,
        "moe": model.moe is not None,
        "mla": model.mla is not None,
        "precision": workload.recipe.precision,
    }


def _choose(framework: Framework, traits: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    defaults, behaviour = dict(framework.defaults), dict(framework.execution)
    for rule in framework.rules:
        if all(_holds(word, value, traits) for word, value in rule["when"].items()):
            defaults |= rule.get("defaults", {})
            behaviour |= rule.get("execution", {})
    return defaults, behaviour


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
    missing = [name for name, value in chosen.items() if value is None and name not in _OPTIONAL]
    for name in missing:
        chosen[name] = _NEUTRAL[name]
    return Recipe(**chosen)


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


# What a field means where neither the recipe nor the framework says anything.
_NEUTRAL: dict[str, object] = {
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "recompute_modules": (),
    "recompute_saved": (),
    "moe_flex_dispatcher_backend": "deepep",
    "fp8_recipe": "tensorwise",
    "pipeline_schedule": "1f1b",
    "microbatch_group_size_per_vp_stage": 1,
    "data_parallel_shard_size": 1,
}


def _implied(workload: Workload, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that follow from others: no sequence parallelism at tp 1, scaling by precision, schedule by vpp."""
    recipe = workload.recipe
    implied: dict[str, Any] = {}
    if recipe.tp == 1:
        implied |= {"sequence_parallel": False, "tp_comm_overlap": False}
    elif not chosen["sequence_parallel"]:
        implied["tp_comm_overlap"] = False
    if chosen["use_turbo_attention"] and recipe.cp > 1:
        implied["cp_comm_type"] = "a2a"  # its ring group has one rank (the same file)
    if recipe.precision in ("mxfp8", "mxfp4", "nvfp4"):
        implied["fp8_recipe"] = recipe.precision
    if chosen["pipeline_schedule"] is None:
        implied["pipeline_schedule"] = "interleaved" if virtual_stages(recipe) > 1 else "1f1b"
    if chosen["microbatch_group_size_per_vp_stage"] is None:
        implied["microbatch_group_size_per_vp_stage"] = recipe.pp
    if chosen["data_parallel_shard_size"] is None:
        implied["data_parallel_shard_size"] = workload.dp * recipe.cp
    if recipe.pipeline_model_parallel_layout is not None:
        implied["vpp"] = virtual_stages(recipe)
    if implied.get("vpp", recipe.vpp) == 1:
        implied["overlap_p2p_comm"] = False
    if chosen["recompute_granularity"] == "selective" and chosen["recompute_modules"] is None:
        implied["recompute_modules"] = ("core_attn",)
    if chosen["recompute_granularity"] != "selective":
        implied["recompute_modules"] = ()
    return implied


_ROCM_ATTENTION = frozenset({"ck", "aiter", "aiter_a16", "aotriton", "triton"})


def _attention(execution: Execution, workload: Workload, recipe: Recipe, arch: str) -> Execution:
    """Primus-Turbo's attention on AMD: AITER's kernels, whose dQ atomics its scripts keep in fp32 on gfx942, and Triton's
    where a head has a learned sink (AMD-AGI/Primus primus/backends/megatron/core/extensions/primus_turbo.py)."""
    if not recipe.use_turbo_attention or execution.attention_family not in _ROCM_ATTENTION:
        return execution
    family = "triton" if workload.model.attention_sinks else "aiter_a16" if arch == "gfx950" else "aiter"
    return dataclasses.replace(execution, attention_family=family)


def _adapt(execution: Execution, recipe: Recipe) -> Execution:
    """What recipe switches change of the execution: gradient dtype, accumulation, full-iteration graphs, sharding."""
    change: dict[str, Any] = {}
    if recipe.grad_reduce_in_bf16:
        change |= {"reduce_bytes": 2.0, "grad_bytes": 2.0}
    if execution.wgrad_accumulation == "fused" and not recipe.gradient_accumulation_fusion:
        change["wgrad_accumulation"] = "separate"
    sharding = recipe.data_parallel_sharding
    if sharding == "optim_grads_params" and execution.data_parallel == "ddp":
        change |= {"data_parallel": "megatron_fsdp", "reduce_every_microbatch": True}
    elif sharding != "optim_grads_params" and execution.data_parallel != "ddp":
        change |= {"data_parallel": "ddp", "reduce_every_microbatch": sharding == "optim_grads"}
    elif sharding == "optim_grads":  # nobody keeps whole gradients between micro-batches
        change["reduce_every_microbatch"] = True
    if recipe.fsdp_reshard_after_forward is not None:
        change["unsharded_pipeline"] = not recipe.fsdp_reshard_after_forward
    if recipe.numa_binding:
        change["unbound_host_factor"] = 1.0
    if recipe.cuda_graph_scope and "full_iteration" in recipe.cuda_graph_scope:
        change["whole_step_compiled"] = True
    if recipe.main_params_dtype == "bf16" and execution.master_bytes == 0.0:
        change |= {"parameter_bytes": 2.0, "grad_bytes": 2.0}
    if recipe.torch_compile:
        change["elementwise_compiled"] = True
    if recipe.attention_backend == "unfused":
        change["attention_materialised"] = True
    if recipe.device_memory_fraction and execution.pool_fraction:
        change["pool_fraction"] = recipe.device_memory_fraction
    if recipe.fp8_param_gather and recipe.precision in ("fp8", "mxfp8"):
        change["gather_bytes"] = 1.0
    return dataclasses.replace(execution, **change)
