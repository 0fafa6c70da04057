"""What the trainer can do of a recipe, and what it does where the recipe says nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from harness.evidence import shelf
from projector import pipeline
from projector.errors import Problem
from projector.settle import scheduling
from projector.workload import rule
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.rule import Rule
from projector.workload.workload import Workload

#: Schedules by the name that projector.pipeline gives them → class of torch.distributed.pipelining.
SCHEDULES: Mapping[str, str] = {
    "1f1b": "Schedule1F1B",
    "gpipe": "ScheduleGPipe",
    "interleaved": "ScheduleInterleaved1F1B",
    "looped_bfs": "ScheduleLoopedBFS",
}
_FILE: Mapping[str, Any] = shelf.data("measure/support.yaml")
_CHOICES: Mapping[str, Sequence[object]] = _FILE["choices"]
_FIXED: Mapping[str, object] = _FILE["fixed"]
_LAID_OUT = _FILE["laid_out"].split()
_DERIVED = ("overlap_grad_reduce", "overlap_param_gather", "moe_grouped_gemm")


def settle(workload: Workload) -> Workload:
    """Returns the workload with every switch stated that the trainer sets. ``problems`` must have found none."""
    recipe = workload.recipe
    stated = {name: getattr(recipe, name) for name in (*_CHOICES, *_FIXED)}
    values = {name: choices[0] for name, choices in _CHOICES.items()} | dict(_FIXED)
    values |= {name: value for name, value in stated.items() if value is not None}
    sharded = values["data_parallel_sharding"] != "no_shard"
    values |= {"overlap_grad_reduce": sharded, "overlap_param_gather": sharded}
    if recipe.precision != "fp8":
        del values["fp8_recipe"]
    if workload.model.moe is None:
        values = {name: value for name, value in values.items() if not name.startswith("moe_")}
    else:
        values["moe_grouped_gemm"] = _experts_kernel(str(values["precision"]))
    if recipe.pp > 1:
        values["pipeline_schedule"] = _schedule(workload)
    return replace(workload, recipe=replace(recipe, **values))  # type: ignore[arg-type]


def problems(workload: Workload, where: str = "") -> list[Problem]:
    """Returns every setting of a valid ``workload`` that the trainer cannot do, with the settings that it can."""
    refused = [*_recipe(workload.recipe, where), *rule.problems(_RULES, workload, where)]
    return refused + [replace(problem, where=where) for problem in scheduling.problems(workload)]


def _experts_kernel(precision: str) -> str:
    """Returns how experts run: torch has one kernel for all of them in bf16 alone."""
    return "fused" if precision == "bf16" else "loop"


def _schedule(workload: Workload) -> str:
    return pipeline.choose(workload.recipe.pipeline_schedule, workload.recipe.pp, workload.recipe.vpp)


def _recipe(recipe: Recipe, where: str) -> Iterable[Problem]:
    for field in fields(Recipe):
        name, value = field.name, getattr(recipe, field.name)
        if value is None or name in _LAID_OUT:
            continue
        if name in _CHOICES:
            possible = _CHOICES[name]
        elif name in _FIXED:
            possible = (_FIXED[name],)
        elif name in _DERIVED:
            sharded = recipe.data_parallel_sharding == "optim_grads_params"
            possible = (_experts_kernel(recipe.precision),) if name == "moe_grouped_gemm" else (sharded,)
        else:
            possible = (field.default, False) if field.default is None else (field.default,)
        if value not in possible:
            words = " or ".join("nothing" if item is None else str(item) for item in possible)
            yield Problem(where, f"recipe.{name}", value, f"{words}: the trainer does nothing else")


def _default(name: str) -> Rule:
    plain = Model.__dataclass_fields__[name].default
    return Rule(f"model.{name}", lambda m, r, w: getattr(m, name) != plain, f"{plain}: the trainer has no such part")


def _one_if_sharded(name: str) -> Rule:
    return Rule(
        f"recipe.{name}",
        lambda m, r, w: r.data_parallel_sharding == "optim_grads_params" and getattr(r, name) > 1,
        "1 where parameters are sharded (FSDP2)",
    )


# fmt: off
_RULES = (
    *map(_default, ("window_size", "attention_sinks", "activation_func_clamp_value", "sandwich_norm", "embedding_layernorm",
                   "quick_geglu", "rotary_magnitude_scaled", "mtp_num_layers", "unsupported")),
    Rule("model.normalization", lambda m, r, w: m.normalization not in ("RMSNorm", "LayerNorm"), "RMSNorm or LayerNorm"),
    Rule("model.position_embedding_type", lambda m, r, w: m.position_embedding_type == "alibi" and m.mla,
         "rope, learned_absolute or none beside mla"),
    Rule("model.moe.moe_router_num_groups", lambda m, r, w: m.moe and m.moe.moe_router_num_groups,
         "nothing: no groups of experts"),
    Rule("model.moe.moe_router_enable_expert_bias", lambda m, r, w: m.moe and m.moe.moe_router_enable_expert_bias,
         "false: no bias of experts"),
    Rule("model.moe.moe_router_score_function",
         lambda m, r, w: m.moe and m.moe.moe_router_score_function not in ("softmax", "sigmoid"), "softmax or sigmoid"),
    Rule("recipe.tp", lambda m, r, w: r.tp > 1 and r.precision == "fp8", "1 beside precision fp8: 8-bit linears are whole"),
    Rule("recipe.tp", lambda m, r, w: m.num_query_groups % r.tp, "a divisor of num_query_groups = {m.num_query_groups}"),
    Rule("recipe.tp", lambda m, r, w: r.tp > 1 and m.moe, "1 for a model with experts: these are split by ep"),
    Rule("recipe.tp", lambda m, r, w: m.hidden_size % r.tp, "a divisor of hidden_size = {m.hidden_size}"),
    Rule("recipe.ep", lambda m, r, w: w.dp % r.ep, "a divisor of the {w.dp} data-parallel ranks"),
    *map(_one_if_sharded, ("tp", "pp", "ep")),
    Rule("recipe.pipeline_schedule", lambda m, r, w: r.pp > 1 and _schedule(w) not in SCHEDULES,
         f"one that torch.distributed.pipelining has: {', '.join(SCHEDULES)}"),
)
# fmt: on
