"""What a framework refuses at launch beyond sizes that do not divide: switches that exclude or need each other.

Rules of Megatron-LM (NVIDIA/Megatron-LM@d98e8a6 megatron/training/arguments.py,
megatron/core/transformer/transformer_config.py, megatron/core/model_parallel_config.py,
megatron/core/pipeline_parallel/schedules.py), of torchtitan (pytorch/torchtitan@b5bcd76
torchtitan/distributed/parallel_dims.py, pipeline_parallel.py) and of Primus (AMD-AGI/Primus@fd1eeab
primus/backends/megatron/patches, rocm_arg_validation.py). A search asks each once for all configurations that are alike
in the fields that it reads. A published run is not held to them: its release may have been another.
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
#: The framework file of strategies that papers describe and no framework here runs.
ANALYTIC = "analytic"


def family(framework: str) -> str:
    """Returns the family of a framework: ``megatron``, ``primus``, ``torchtitan``, or its own name."""
    if framework == "primus":
        return framework
    return "megatron" if framework.startswith(_MEGATRON) else framework


def schedules_of(framework: str, *, tuned: bool = True) -> tuple[str, ...]:
    """Pipeline schedules that ``framework`` runs; those of Megatron-LM where nothing is known of it. ``tuned``: also those
    whose order is made for the durations at hand, which takes too long for each of a search's thousands."""
    return own_schedules(framework, tuned=tuned) or _run_by("megatron", tuned)


def own_schedules(framework: str, *, tuned: bool = True) -> tuple[str, ...]:
    """The same; none where nothing is known of it."""
    return _run_by(family(framework), tuned)


#: Token dispatchers, and libraries of the flex one, by family of frameworks; of the others nothing is known.
_DISPATCHERS: Mapping[str, tuple[str, ...]] = {
    "megatron": ("allgather", "alltoall", "deepep", "hybridep"),
    "primus": ("allgather", "alltoall", "deepep", "hybridep", "mega_moe"),
    "torchtitan": ("alltoall", "deepep", "hybridep"),
}
#: All that any framework has.
DISPATCHERS = tuple(dict.fromkeys(name for names in _DISPATCHERS.values() for name in names))


def dispatchers_of(framework: str) -> tuple[str, ...]:
    """Token dispatchers, and libraries of the flex one, that ``framework`` has; none where nothing is known of it."""
    return _DISPATCHERS.get(family(framework), ())


def foreign(workload: Workload) -> tuple[str, ...]:
    """Returns what the (resolved) recipe asks for that its framework does not run, as texts for what is assumed: a plan
    may well ask what another framework's schedule or dispatcher would bring."""
    recipe, name, found = workload.recipe, workload.framework, []
    schedule = pipeline.choose(recipe.pipeline_schedule, recipe.pp, recipe.vpp)
    able = _run_by(family(name))
    if recipe.pp > 1 and able and schedule not in able:
        found.append(f"pipeline_schedule={schedule}, which {name} does not run (it runs {', '.join(able)})")
    library = recipe.moe_token_dispatcher_type
    if library == "flex":
        library = recipe.moe_flex_dispatcher_backend or "deepep"
    dispatchers = dispatchers_of(name)
    if workload.model.moe and dispatchers and library not in dispatchers:
        found.append(
            f"moe_token_dispatcher_type={library}, which {name} does not run (it runs {', '.join(dispatchers)})"
        )
    return tuple(found)


def _run_by(kind: str, tuned: bool = True) -> tuple[str, ...]:
    known = ((name, pipeline.generator(name)) for name in pipeline.names(unlisted=True))
    return tuple(name for name, made in known if kind in made.run_by and (tuned or made.tuned is None))


def rules_of(framework: str) -> tuple[Rule, ...]:
    """Returns the rules of a framework; of one of which nothing is known, those that all have."""
    return RULES.get(family(framework), _EVERY)


def problems(workload: Workload, asked: Sequence[Rule] | None = None) -> list[Problem]:
    """Everything for which the framework of ``workload`` would refuse to start, by the rules ``asked`` or all of its own."""
    return broken(rules_of(workload.framework) if asked is None else asked, workload)


def _order(r: Recipe) -> str:
    """The schedule that runs."""
    return pipeline.choose(r.pipeline_schedule, r.pp, r.vpp)


def _unable(r: Recipe, w: Workload) -> str:
    """The schedules that the framework runs, where the one that is asked for is none of them."""
    able = schedules_of(w.framework)
    return ", ".join(able) if r.pp > 1 and r.pipeline_schedule is not None and _order(r) not in able else ""


def _uncut(m: Model, r: Recipe) -> bool:
    """Whether no number of layers a stage comes to these stages: torchtitan cuts a model by the layers of a stage, embedding
    and output counted. Two chunks of a looped schedule need no such number."""
    if r.pp == 1 or r.vpp <= 2:
        return False
    weighted, stages = m.num_layers + 2 * (r.pipeline_remainder != "first"), r.pp * r.vpp
    return -(-weighted // -(-weighted // stages)) != stages


def _exchange_exposed(m: Model, r: Recipe) -> object:
    """Whether the exchange of experts cannot hide behind another micro-batch (transformer_config.py,
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
_EVERY = (
    *GRID, rules.FAST_DOMAIN,
    Rule("recipe.recompute_granularity", lambda m, r, w: conflict(r),
         "no whole layers where weight gradients are put off"),
    Rule("recipe.sequence_parallel", lambda m, r, w: r.sequence_parallel and r.tp == 1, "tp > 1"),
)
_CORE = (
    Rule("recipe.pipeline_schedule", lambda m, r, w: _unable(r, w), "one that {w.framework} runs: {0}"),
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
    Rule("recipe.offload_modules",
         lambda m, r, w: r.offload_modules and (r.cpu_offloading_num_layers or r.recompute_granularity == "full"),
         "neither whole layers on the host nor whole layers recomputed"),
    Rule("recipe.cpu_offloading_num_layers",
         lambda m, r, w: r.cpu_offloading_num_layers and (r.pp > 1 or r.recompute_granularity not in (None, "none")),
         "no pipeline and no recompute"),
)
#: Rules by family of frameworks, and those that every framework has.
RULES: Mapping[str, tuple[Rule, ...]] = MappingProxyType({
    "primus": (*_EVERY, *_CORE),
    "megatron": (
        *_EVERY, *_CORE,
        Rule("recipe.data_parallel_sharding",
             lambda m, r, w: r.data_parallel_sharding == "optim_grads_params" and (r.pp > 1 or r.ep > 1),
             "no pipeline and no experts apart, where PyTorch shards the weights"),
    ),
    "torchtitan": (
        *_EVERY,
        Rule("recipe.pipeline_schedule", lambda m, r, w: _unable(r, w), "one that {w.framework} runs: {0}"),
        # schedules of one stage a rank take one, looped ones at least two, V-shaped ones exactly two
        Rule("recipe.vpp", lambda m, r, w: r.vpp == 1 and r.pp > 1 and _order(r) not in ("1f1b", "gpipe") and _order(r),
             "two chunks a rank or more for {0}"),
        Rule("recipe.vpp", lambda m, r, w: _uncut(m, r), "as many stages as whole layers of a stage cut the model into"),
        # without a group of their own experts are cut as the rest is (models/llama4/infra/parallelize.py)
        Rule("recipe.etp", lambda m, r, w: m.moe and r.ep == 1 and r.etp != r.tp, "tp = {r.tp} where ep is 1"),
        Rule("recipe.sequence_parallel", lambda m, r, w: r.sequence_parallel is False and r.tp > 1,
             "on with tp > 1: torchtitan's plans of tensor parallelism shard the sequence"),
    ),
})
# fmt: on
