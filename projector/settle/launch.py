"""The rules by which frameworks refuse to launch, beyond sizes that do not divide: switches that exclude or need others.

Rules of Megatron-LM (NVIDIA/Megatron-LM@d98e8a6 megatron/training/arguments.py,
megatron/core/transformer/transformer_config.py, megatron/core/model_parallel_config.py,
megatron/core/pipeline_parallel/schedules.py), of torchtitan (pytorch/torchtitan@b5bcd76
torchtitan/distributed/parallel_dims.py, pipeline_parallel.py) and of Primus (AMD-AGI/Primus@fd1eeab
primus/backends/megatron/patches, rocm_arg_validation.py). A search asks each rule once for all configurations with
equal fields that the rule reads. A published run is not held to them: its release may have been another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from projector import pipeline
from projector.errors import Problem
from projector.settle.scheduling import conflict
from projector.size import most
from projector.workload import rules
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.rule import Rule
from projector.workload.rule import problems as broken
from projector.workload.workload import Workload

_MEGATRON = ("megatron", "primus", "nemo")
_SHARDED = ("optim", "optim_grads", "optim_grads_params")
#: Name of the framework file for strategies that papers describe and no framework here runs.
ANALYTIC = "analytic"


def family(framework: str) -> str:
    """Returns the family of a framework: ``megatron``, ``primus``, ``torchtitan``, or its own name."""
    if framework == "primus":
        return framework
    return "megatron" if framework.startswith(_MEGATRON) else framework


def schedules_of(framework: str, *, tuned: bool = True) -> tuple[str, ...]:
    """Returns the pipeline schedules that ``framework`` runs; those of Megatron-LM for an unknown framework. ``tuned``:
    include schedules whose order is made for the durations at hand, too slow for each of a search's thousands of layouts."""
    return own_schedules(framework, tuned=tuned) or own_schedules("megatron", tuned=tuned)


def own_schedules(framework: str, *, tuned: bool = True) -> tuple[str, ...]:
    """Returns the same as :func:`schedules_of`, but none for an unknown framework."""
    kind, generators = family(framework), ((name, pipeline.generator(name)) for name in pipeline.names(unlisted=True))
    return tuple(name for name, made in generators if kind in made.configured_by and (tuned or made.tuned is None))


#: Token dispatchers, and libraries of the flex dispatcher, by family of frameworks; other families are unknown.
_DISPATCHERS: Mapping[str, tuple[str, ...]] = {
    "megatron": ("allgather", "alltoall", "deepep", "hybridep"),
    "primus": ("allgather", "alltoall", "deepep", "hybridep", "mega_moe"),
    "torchtitan": ("alltoall", "deepep", "hybridep"),
}
#: Dispatchers and libraries of any framework.
DISPATCHERS = tuple(dict.fromkeys(name for names in _DISPATCHERS.values() for name in names))


def dispatchers_of(framework: str) -> tuple[str, ...]:
    """Returns the token dispatchers, and libraries of the flex one, of ``framework``; none for an unknown framework."""
    return _DISPATCHERS.get(family(framework), ())


def unsupported_by_framework(workload: Workload) -> tuple[str, ...]:
    """Returns what the resolved recipe asks for that its framework does not run, as texts for the list of assumptions:
    a plan may well ask what another framework's schedule or dispatcher would bring."""
    recipe, name, texts = workload.recipe, workload.framework, []
    schedule = pipeline.choose(recipe.pipeline_schedule, recipe.pp, recipe.vpp)
    schedules = own_schedules(name)
    if recipe.pp > 1 and schedules and schedule not in schedules:
        texts.append(f"pipeline_schedule={schedule}, which {name} does not run (it runs {', '.join(schedules)})")
    library = recipe.moe_token_dispatcher_type
    if library == "flex":
        library = recipe.moe_flex_dispatcher_backend or "deepep"
    dispatchers = dispatchers_of(name)
    if workload.model.moe and dispatchers and library not in dispatchers:
        texts.append(
            f"moe_token_dispatcher_type={library}, which {name} does not run (it runs {', '.join(dispatchers)})"
        )
    return tuple(texts)


def rules_of(framework: str) -> tuple[Rule, ...]:
    """Returns the rules of a framework; for an unknown one the rules that all have."""
    return RULES.get(family(framework), _COMMON)


def problems(workload: Workload, asked: Sequence[Rule] | None = None) -> list[Problem]:
    """Returns every reason why the framework of ``workload`` would refuse to start, by ``asked`` or all rules."""
    return broken(rules_of(workload.framework) if asked is None else asked, workload)


def _order(r: Recipe) -> str:
    return pipeline.choose(r.pipeline_schedule, r.pp, r.vpp)


def _able(r: Recipe, w: Workload) -> str:
    """Returns the schedules that the framework runs, empty where the schedule asked for is one of them."""
    able = schedules_of(w.framework)
    return ", ".join(able) if r.pp > 1 and r.pipeline_schedule is not None and _order(r) not in able else ""


def _uncut(m: Model, r: Recipe) -> bool:
    """Returns whether no whole number of layers a stage gives these stages: torchtitan cuts a model by the layers of a
    stage, embedding and output counted. Two chunks of a looped schedule need no such number."""
    if r.pp == 1 or r.vpp <= 2:
        return False
    weighted, stages = m.num_layers + 2 * (r.pipeline_remainder != "first"), r.pp * r.vpp
    return -(-weighted // -(-weighted // stages)) != stages


def _exchange_exposed(m: Model, r: Recipe) -> object:
    """Returns whether the exchange of experts cannot hide behind another micro-batch (transformer_config.py,
    overlap_moe_expert_parallel_comm)."""
    return (
        r.ep == 1
        or r.moe_token_dispatcher_type == "allgather"
        or (r.pp > 1 and r.vpp == 1)
        or r.precision == "fp32"
        or m.mtp_num_layers > 1
        or r.recompute_granularity == "full"
        or "moe" in (r.recompute_modules or ())
        or r.moe_shared_expert_overlap
    )


# fmt: off
GRID = (
    *rules.SUMMA,
    Rule("recipe.tensor_parallel_algorithm",
         lambda m, r, w: r.tensor_parallel_algorithm == "summa" and w.framework != ANALYTIC,
         f"1d: {{w.framework}} has no SUMMA; the framework {ANALYTIC} has"),
)
_COMMON = (
    *GRID, rules.FAST_DOMAIN,
    Rule("recipe.recompute_granularity", lambda m, r, w: conflict(r),
         "no whole layers where weight gradients are put off"),
    Rule("recipe.sequence_parallel", lambda m, r, w: r.sequence_parallel and r.tp == 1, "tp > 1"),
)
_CORE = (
    Rule("recipe.pipeline_schedule", lambda m, r, w: _able(r, w), "one that {w.framework} runs: {0}"),
    Rule("recipe.global_batch_size", lambda m, r, w: r.pp > 1 and _order(r) in ("interleaved", "interleaved_zb")
         and w.num_microbatches < r.pp,
         "as many micro-batches as stages, or more, where chunks are interleaved"),
    Rule("recipe.overlap_p2p_comm", lambda m, r, w: r.vpp > 1 and r.pp == 2 and r.overlap_p2p_comm is False,
         "messages beside compute where two ranks interleave chunks"),
    Rule("recipe.recompute_num_layers", lambda m, r, w: r.recompute_granularity == "full"
         and r.recompute_num_layers is not None and not 1 <= r.recompute_num_layers <= most(1, m.num_layers // r.pp),
         "from 1 to num_layers / pp"),
    Rule("recipe.sequence_parallel", lambda m, r, w: r.sequence_parallel is False and r.tp > 1 and r.ep > 1,
         "on where tensor and expert parallelism meet"),
    Rule("recipe.tp_comm_overlap", lambda m, r, w: r.tp_comm_overlap and (r.tp == 1 or r.sequence_parallel is not True),
         "tp > 1 and sequence_parallel"),
    Rule("recipe.overlap_param_gather", lambda m, r, w: r.overlap_param_gather
         and not (r.overlap_grad_reduce and r.data_parallel_sharding in _SHARDED),
         "overlap_grad_reduce and a sharded optimizer"),
    Rule("recipe.overlap_moe_expert_parallel_comm",
         lambda m, r, w: r.overlap_moe_expert_parallel_comm and _exchange_exposed(m, r),
         "ep > 1, alltoall or flex, chunks where pp > 1, at most one MTP layer, experts not recomputed"),
    Rule("recipe.delay_wgrad_compute",
         lambda m, r, w: r.delay_wgrad_compute and not r.overlap_moe_expert_parallel_comm,
         "overlap_moe_expert_parallel_comm"),
    Rule("recipe.moe_shared_expert_overlap",
         lambda m, r, w: r.moe_shared_expert_overlap and r.moe_token_dispatcher_type == "allgather", "alltoall or flex"),
    Rule("recipe.moe_token_dispatcher_type",
         lambda m, r, w: r.moe_token_dispatcher_type == "flex" and r.tp * r.ep == 1,
         "tp · ep > 1 for the flex dispatcher"),
    Rule("recipe.recompute_modules", lambda m, r, w: r.precision == "fp8" and r.fp8_recipe == "delayed"
         and {"moe_act", "layernorm"} & set(r.recompute_modules or ()),
         "neither moe_act nor layernorm with delayed scaling"),
    Rule("recipe.optimizer_cpu_offload", lambda m, r, w: r.optimizer_cpu_offload
         and not (r.use_precision_aware_optimizer and r.data_parallel_sharding in _SHARDED),
         "use_precision_aware_optimizer and a sharded optimizer"),
    Rule("recipe.optimizer", lambda m, r, w: r.optimizer in ("muon", "dist_muon", "lion")
         and r.data_parallel_sharding in _SHARDED[1:], "adam or sgd where gradients and weights are shared out (FSDP)"),
    Rule("recipe.offload_modules",
         lambda m, r, w: r.offload_modules and (r.cpu_offloading_num_layers or r.recompute_granularity == "full"),
         "neither whole layers on the host nor whole layers recomputed"),
    Rule("recipe.cpu_offloading_num_layers",
         lambda m, r, w: r.cpu_offloading_num_layers and (r.pp > 1 or r.recompute_granularity not in (None, "none")),
         "no pipeline and no recompute"),
)
#: Rules by family of frameworks, those that every framework has included.
RULES: Mapping[str, tuple[Rule, ...]] = MappingProxyType({
    "primus": (*_COMMON, *_CORE),
    "megatron": (
        *_COMMON, *_CORE,
        Rule("recipe.data_parallel_sharding",
             lambda m, r, w: r.data_parallel_sharding == "optim_grads_params" and (r.pp > 1 or r.ep > 1),
             "no pipeline and no experts apart, where PyTorch shards the weights"),
    ),
    "torchtitan": (
        *_COMMON,
        Rule("recipe.pipeline_schedule", lambda m, r, w: _able(r, w), "one that {w.framework} runs: {0}"),
        # schedules of one stage a rank take one, looped ones at least two, V-shaped ones exactly two
        Rule("recipe.vpp", lambda m, r, w: r.vpp == 1 and r.pp > 1 and _order(r) not in ("1f1b", "gpipe") and _order(r),
             "two chunks a rank or more for {0}"),
        Rule("recipe.vpp", lambda m, r, w: _uncut(m, r), "as many stages as whole layers of a stage cut the model into"),
        # experts without a group of their own are split like the other weights (models/llama4/infra/parallelize.py)
        Rule("recipe.etp", lambda m, r, w: m.moe and r.ep == 1 and r.etp != r.tp, "tp = {r.tp} where ep is 1"),
        Rule("recipe.sequence_parallel", lambda m, r, w: r.sequence_parallel is False and r.tp > 1,
             "on with tp > 1: torchtitan's plans of tensor parallelism shard the sequence"),
    ),
})
# fmt: on
