"""Writes a workload in the words of its framework: Megatron-LM's arguments, a Primus, NeMo or torchtitan configuration.

The fields' declared names are the words; what a loader works out from others is written as that loader reads it
(:mod:`projector.intake`), so that each text can be read back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from projector import pipeline
from projector.errors import InputError, Problem
from projector.frameworks import load as load_framework
from projector.intake.dialect import dialect
from projector.intake.tables import table
from projector.workload.field_facts import about_of
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

#: Fields of a model that are arguments of Megatron-LM as they stand.
_PLAIN = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels"),
    *("max_position_embeddings", "vocab_size"),
)
_EXPERTS = (
    *("num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size"),
    *("moe_router_num_groups", "moe_router_group_topk", "moe_router_score_function", "moe_router_enable_expert_bias"),
)
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
_SWITCHES = ("qk_layernorm", "add_qkv_bias", "untie_embeddings_and_output_weights")


def arguments(load: Workload) -> dict[str, Any]:
    """Returns Megatron-LM's arguments of model and recipe, by name."""
    none = {"attention_dropout": 0.0, "hidden_dropout": 0.0}  # Megatron-LM's own are 0.1
    values = {**architecture(load), **none, **_recipe_arguments(load)}
    if values.get("recompute_granularity") == "full" and load.recipe.recompute_method is None:
        values |= {"recompute_method": "uniform", "recompute_num_layers": load.recipe.recompute_num_layers or 1}
    if load.recipe.moe_grouped_gemm not in (None, "loop"):
        values |= {"moe_grouped_gemm": True, "moe_use_legacy_grouped_gemm": load.recipe.moe_grouped_gemm == "legacy"}
    return values


def switched(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields arguments as words of a command line have them: a switch that is on unless said otherwise has a word, begun
    with ``no_``, that turns it off, and none that turns it on."""
    on, declared = load_framework("megatron-lm").defaults, about_of(Recipe)
    for name, value in values.items():
        usual = name in declared and on.get(name) is True
        yield (f"no_{declared[name].names['megatron'][-1]}", not value) if usual else (name, value)


def architecture(load: Workload) -> dict[str, Any]:
    """Returns Megatron-LM's arguments of the model, by name, with at least as many positions as a sample has tokens:
    it starts with no fewer (NVIDIA/Megatron-LM@d98e8a64dd megatron/training/arguments.py)."""
    model = load.model
    values = {name: getattr(model, name) for name in _PLAIN}
    values["max_position_embeddings"] = max(model.max_position_embeddings or 0, load.recipe.seq_length)
    values |= {name: True for name in _SWITCHES if getattr(model, name)}
    values |= {"normalization": model.normalization, "position_embedding_type": model.position_embedding_type}
    values |= {"swiglu": model.gated_linear_unit, "disable_bias_linear": not model.add_bias_linear}
    if model.num_query_groups != model.num_attention_heads:
        values |= {"group_query_attention": True, "num_query_groups": model.num_query_groups}
    if model.moe is not None:
        values |= {name: value for name in _EXPERTS if (value := getattr(model.moe, name))}  # size 0 builds experts
        freq = [int(each) for each in model.moe.moe_layer_freq]
        values["moe_layer_freq"] = f"[{','.join(map(str, freq))}]" if not all(freq) else None
    if model.mla is not None:
        values |= {"multi_latent_attention": True, **{name: getattr(model.mla, name) for name in _LATENT}}
    if model.mtp_num_layers:
        values["mtp_num_layers"] = model.mtp_num_layers
    return {name: value for name, value in values.items() if value is not None and value is not False}


def _recipe_arguments(load: Workload) -> dict[str, Any]:
    recipe, declared = load.recipe, about_of(Recipe)
    values = _stated_fields(recipe, "megatron")
    values.pop(declared["vpp"].names["megatron"][0])  # Megatron-LM derives this; the second name is its argument
    if recipe.vpp > 1 and recipe.pipeline_model_parallel_layout is None:
        values[declared["vpp"].names["megatron"][1]] = recipe.vpp
    values[{"fp16": "fp16"}.get(recipe.precision, "bf16")] = True
    if recipe.precision in ("fp8", "mxfp8"):
        values |= {"fp8": "hybrid", "fp8_recipe": "mxfp8" if recipe.precision == "mxfp8" else recipe.fp8_recipe}
    if recipe.precision in ("mxfp4", "nvfp4"):
        values |= {"fp4": "e2m1", "fp4_recipe": recipe.precision}
    sharded = recipe.data_parallel_sharding in ("optim_grads", "optim_grads_params")
    values["use_distributed_optimizer"] = sharded or recipe.data_parallel_sharding == "optim"
    if sharded:
        values |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": recipe.data_parallel_sharding}
    granularity = recipe.recompute_granularity
    if granularity not in (None, "none"):
        values["recompute_granularity"] = granularity
        if granularity == "selective":
            values["recompute_modules"] = list(recipe.recompute_modules or ("core_attn",))
    for name in ("pipeline_model_parallel_layout", "moe_token_dispatcher_type", "moe_flex_dispatcher_backend"):
        if getattr(recipe, name) is not None:
            values[name] = getattr(recipe, name)
    if recipe.cross_entropy_fusion in ("none", "native", "te"):
        values["cross_entropy_loss_fusion"] = recipe.cross_entropy_fusion != "none"
        if values["cross_entropy_loss_fusion"]:
            values["cross_entropy_fusion_impl"] = recipe.cross_entropy_fusion
    if recipe.offload_modules:
        values |= {"fine_grained_activation_offloading": True, "offload_modules": list(recipe.offload_modules)}
    if recipe.pp > 1 and recipe.pipeline_schedule not in (None, "1f1b", "interleaved"):
        values["pipeline_schedule"] = recipe.pipeline_schedule
    return {name: value for name, value in values.items() if value is not None}


def experiment(load: Workload) -> dict[str, Any]:
    """Returns a Primus experiment that trains with Megatron-LM. ``model``: this project's name of Primus' preset."""
    recipe = load.recipe
    changes = {**_recipe_arguments(load), **_stated_fields(recipe, "primus")}
    schedule = changes.pop("pipeline_schedule", None)
    if schedule is not None:
        words = [
            word for word, name in table("primus", "schedules").items() if _ordered(recipe, name) == _ordered(recipe)
        ]
        changes |= {"patch_primus_pipeline": True, "pp_algorithm": words[0] if words else schedule}
    turbo = [name for name in changes if name.startswith(("use_turbo", "turbo_"))]
    switch = {"deepep": "use_turbo_deepep", "mega_moe": "use_turbo_mega_moe"}.get(
        recipe.moe_flex_dispatcher_backend or ""
    )
    if switch:
        changes[switch] = True
    if recipe.moe_flex_dispatcher_backend == "mega_moe":  # only Primus has this backend
        del changes["moe_flex_dispatcher_backend"]
    if turbo or switch:
        changes["enable_primus_turbo"] = True
    trainer = {
        "framework": "megatron",
        "config": "pre_trainer.yaml",
        "model": f"{load.model.name}.yaml",
        "overrides": changes,
    }
    head = {"work_group": "local", "user_name": "local", "exp_name": f"{load.model.name}-{load.gpus}-gpus"}
    return {**head, "workspace": "./output", "modules": {"pre_trainer": trainer}}


def nemo(load: Workload, hosts: int, each: int) -> dict[str, Any]:
    """Returns NeMo 1's configuration (examples/nlp/language_modeling/conf/megatron_gpt_config.yaml) on ``hosts`` of
    ``each`` GPUs."""
    renamed = {ours: theirs[0] for ours, theirs in dialect("nemo").names.items()}
    given, recipe = architecture(load), load.recipe
    swiglu, bias = given.pop("swiglu", False), not given.pop("disable_bias_linear", False)
    given.pop("group_query_attention", None)
    model: dict[str, Any] = {renamed.get(name, name): value for name, value in given.items()}
    model |= {
        "normalization": str(load.model.normalization).lower(),
        "activation": "swiglu" if swiglu else "gelu",
        "bias": bias,
    }
    model["share_embeddings_and_output_weights"] = not model.pop("untie_embeddings_and_output_weights", False)
    top: dict[str, Any] = {"num_nodes": hosts, "devices": each}
    top["precision"] = {"fp32": 32, "fp16": "16-mixed"}.get(recipe.precision, "bf16-mixed")
    content: dict[str, Any] = {"trainer": top, "model": model}
    for name, declared in about_of(Recipe).items():
        value, theirs = getattr(recipe, name), declared.names.get("nemo", ())
        if theirs and value is not None:
            place = content if theirs[0].startswith("trainer.") else model
            *outer, last = theirs[0].removeprefix("model.").split(".")
            for key in outer:
                place = place.setdefault(key, {})
            place[last] = list(value) if isinstance(value, tuple) else value
    model["fp8"] = recipe.precision == "fp8"
    optim = model.setdefault("optim", {})
    optim["name"] = "distributed_fused_adam" if recipe.data_parallel_sharding == "optim" else "fused_adam"
    overlaps = {"overlap_grad_sync": recipe.overlap_grad_reduce, "overlap_param_sync": recipe.overlap_param_gather}
    optim |= {name: value for name, value in overlaps.items() if value is not None}
    return content


def job(load: Workload) -> dict[str, dict[str, Any]]:
    """Returns the sections of a torchtitan job file. Raises :class:`InputError` for a model that no flavor names."""
    recipe = load.recipe
    sections: dict[str, dict[str, Any]] = {"model": _flavor(load)}
    for path, value in _stated_fields(recipe, "torchtitan").items():
        section, _, name = path.partition(".")
        sections.setdefault(section, {})[name] = value
    # with a pipeline a rank's samples are cut into micro-batches, without one gradients are added up
    local_batch = recipe.global_batch_size // load.dp if recipe.pp > 1 else recipe.micro_batch_size
    sections["training"] |= {"global_batch_size": recipe.global_batch_size, "local_batch_size": local_batch}
    sections["parallelism"] |= dict(_degrees(load))
    sections["activation_checkpoint"] = dict(_activation_checkpoint(load))
    sections["compile"] = {"enable": recipe.torch_compile is not False}
    if recipe.precision == "fp8":
        sections["model"]["converters"] = ["float8"]
        sections["float8"] = {"recipe_name": recipe.fp8_recipe or "rowwise"}
    elif recipe.precision == "mxfp8":
        sections["model"]["converters"] = ["mx"]
    return sections


def toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns sections of words, numbers, switches and lists of these as TOML."""
    lines: list[str] = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items()), ""]
    return "\n".join(lines)


def _stated_fields(recipe: Recipe, framework: str) -> dict[str, Any]:
    """Returns the stated fields by the framework's own names of them."""
    fields_by_name: dict[str, Any] = {}
    for field in fields(Recipe):
        value, names = getattr(recipe, field.name), about_of(Recipe)[field.name].names.get(framework, ())
        if names and value is not None:
            fields_by_name[names[0]] = list(value) if isinstance(value, tuple) else value
    return fields_by_name


def _ordered(recipe: Recipe, name: str | None = None) -> str:
    """Returns the schedule that ``name`` (default: that of the recipe) means for these sizes."""
    return pipeline.choose(name or recipe.pipeline_schedule, recipe.pp, recipe.vpp)


def _flavor(load: Workload) -> dict[str, Any]:
    for name, flavors in dialect("torchtitan").tables["flavors"].items():
        for flavor, model in flavors.items():
            if model == load.model.name or model.replace("llama3.1_", "llama3_") == load.model.name:
                return {"name": name, "flavor": flavor.upper() if name != "llama4" else flavor}
    problem = Problem("--write", "model.flavor", load.model.name, "a model of torchtitan's own flavors")
    raise InputError([problem])


def _degrees(load: Workload) -> Iterator[tuple[str, Any]]:
    recipe = load.recipe
    shards = recipe.data_parallel_shard_size
    if recipe.data_parallel_sharding == "no_shard":
        yield from (("data_parallel_replicate_degree", load.dp), ("data_parallel_shard_degree", 1))
    elif shards is not None and shards < load.dp * recipe.cp:
        yield "data_parallel_replicate_degree", load.dp * recipe.cp // shards
        yield "data_parallel_shard_degree", shards // recipe.cp
    else:
        yield "data_parallel_shard_degree", load.dp
    if recipe.fsdp_reshard_after_forward is not None:
        yield "fsdp_reshard_after_forward", "always" if recipe.fsdp_reshard_after_forward else "never"
    if recipe.pp == 1:
        return
    yield "pipeline_parallel_microbatch_size", recipe.micro_batch_size
    for word, (name, usual) in dialect("torchtitan").tables["schedules"].items():
        if (usual > 1) == (recipe.vpp > 1) and _ordered(recipe, name) == _ordered(recipe):
            yield "pipeline_parallel_schedule", word
            if recipe.vpp != usual:
                weighted = load.model.num_layers + 2 * (recipe.pipeline_remainder != "first")
                yield "pipeline_parallel_layers_per_stage", -(-weighted // (recipe.pp * recipe.vpp))
    if recipe.pipeline_remainder == "first":
        ends = ("pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers")
        yield from ((name, 0) for name in ends)


def _activation_checkpoint(load: Workload) -> Iterator[tuple[str, Any]]:
    recipe = load.recipe
    if recipe.recompute_granularity == "selective":
        yield from (("mode", "selective"), ("selective_ac_option", "op"))
    elif recipe.recompute_layer_ids is not None:
        period = recipe.recompute_layer_ids[0] + 1 if recipe.recompute_layer_ids else load.model.num_layers + 1
        yield from (("mode", "selective"), ("selective_ac_option", str(period)))
    else:
        yield "mode", recipe.recompute_granularity or "none"
