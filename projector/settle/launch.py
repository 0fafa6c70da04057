"""What a framework refuses at launch beyond sizes that do not divide: switches that exclude or need each other.

Rules of Megatron-LM (NVIDIA/Megatron-LM@d98e8a6 megatron/training/arguments.py,
megatron/core/transformer/transformer_config.py, megatron/core/model_parallel_config.py,
megatron/core/pipeline_parallel/schedules.py), of torchtitan (pytorch/torchtitan@b5bcd76
torchtitan/distributed/parallel_dims.py, pipeline_parallel.py) and of Primus (AMD-AGI/Primus@fd1eeab
primus/backends/megatron/patches, rocm_arg_validation.py). Each says which fields it reads, so that a search asks it
once for all configurations that are alike to it. A published run is not held to them: its release may have been
another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from projector import pipeline
from projector.dataclass import dataclass
from projector.errors import Problem
from projector.settle import scheduling
from projector.workload import fast_domain, summa
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

_CORE = ("megatron", "primus")
_MEGATRON = ("megatron", "primus", "nemo")
_SHARDED = ("optim", "optim_grads", "optim_grads_params")
#: The framework file of strategies that papers describe and no framework here runs.
ANALYTIC = "analytic"


@dataclass(frozen=True, slots=True)
class Rule:
    """``reads``: recipe fields on which it depends (``gpus``, ``microbatches`` are not of the recipe); ``refuses``: the
    field to blame and what is expected of it, or None."""

    reads: tuple[str, ...]
    refuses: Callable[[Workload], tuple[str, str] | None]
    families: tuple[str, ...] = _CORE


def family(framework: str) -> str:
    """``megatron``, ``primus``, ``torchtitan``, or the framework's own name."""
    if framework == "primus":
        return framework
    return "megatron" if framework.startswith(_MEGATRON) else framework


def schedules_of(framework: str, *, tuned: bool = True) -> tuple[str, ...]:
    """Pipeline schedules that ``framework`` runs; those of Megatron-LM where nothing is known of it. ``tuned``: also those
    whose order is made for the durations at hand, which takes too long for each of a search's thousands."""
    kind = family(framework)
    return _run_by(kind, tuned) or _run_by("megatron", tuned)


#: Token dispatchers, and libraries of the flex one, by family of frameworks; of the others nothing is known.
_DISPATCHERS: Mapping[str, tuple[str, ...]] = {
    "megatron": ("allgather", "alltoall", "deepep", "hybridep"),
    "primus": ("allgather", "alltoall", "deepep", "hybridep", "mega_moe"),
    "torchtitan": ("alltoall", "deepep", "hybridep"),
}


def foreign(workload: Workload) -> tuple[str, ...]:
    """What the (resolved) recipe asks for that its framework does not run, as texts for what is assumed: a plan may well
    ask what another framework's schedule or dispatcher would bring."""
    recipe, name, found = workload.recipe, workload.framework, []
    schedule = pipeline.choose(recipe.pipeline_schedule, recipe.pp, recipe.vpp)
    able = _run_by(family(name))
    if recipe.pp > 1 and able and schedule not in able:
        found.append(f"pipeline_schedule={schedule}, which {name} does not run (it runs {', '.join(able)})")
    library = recipe.moe_token_dispatcher_type
    if library == "flex":
        library = recipe.moe_flex_dispatcher_backend or "deepep"
    dispatchers = _DISPATCHERS.get(family(name))
    if workload.model.moe and dispatchers and library not in dispatchers:
        found.append(
            f"moe_token_dispatcher_type={library}, which {name} does not run (it runs {', '.join(dispatchers)})"
        )
    return tuple(found)


def _run_by(kind: str, tuned: bool = True) -> tuple[str, ...]:
    known = ((name, pipeline.generator(name)) for name in pipeline.names(unlisted=True))
    return tuple(name for name, made in known if kind in made.run_by and (tuned or made.tuned is None))


def rules_of(framework: str) -> tuple[Rule, ...]:
    kind = family(framework)
    return tuple(rule for rule in RULES if kind in rule.families or not rule.families)


def problems(workload: Workload, rules: Sequence[Rule] | None = None) -> list[Problem]:
    """Everything for which the framework of ``workload`` would refuse to start."""
    found: list[Problem] = []
    for rule in rules_of(workload.framework) if rules is None else rules:
        wrong = rule.refuses(workload)
        if wrong is not None:
            key, expected = wrong
            found.append(Problem("", f"recipe.{key}", getattr(workload.recipe, key), expected))
    return found


def _schedule(w: Workload) -> tuple[str, str] | None:
    if w.recipe.pp == 1 or w.recipe.pipeline_schedule is None:
        return None
    name = pipeline.choose(w.recipe.pipeline_schedule, w.recipe.pp, w.recipe.vpp)
    if name in schedules_of(w.framework):
        return None
    return "pipeline_schedule", f"one that {w.framework} runs: {', '.join(schedules_of(w.framework))}"


def _conflict(w: Workload) -> tuple[str, str] | None:
    wrong = scheduling.conflict(w.recipe)
    return ("recompute_granularity", "no whole layers where weight gradients are put off") if wrong else None


def _few(w: Workload) -> tuple[str, str] | None:
    looped = pipeline.choose(w.recipe.pipeline_schedule, w.recipe.pp, w.recipe.vpp) in ("interleaved", "interleaved_zb")
    if not looped or w.recipe.pp == 1 or w.num_microbatches >= w.recipe.pp:
        return None
    return "global_batch_size", "as many micro-batches as stages, or more, where chunks are interleaved"


def _layers(w: Workload) -> tuple[str, str] | None:
    recipe, whole = w.recipe, w.recipe.recompute_granularity == "full"
    most = w.model.num_layers // recipe.pp
    if not whole or recipe.recompute_num_layers is None or 1 <= recipe.recompute_num_layers <= max(1, most):
        return None
    return "recompute_num_layers", "from 1 to num_layers / pp"


def _experts_beside(w: Workload) -> tuple[str, str] | None:
    """The exchange of experts behind another micro-batch (transformer_config.py, overlap_moe_expert_parallel_comm)."""
    recipe = w.recipe
    if not recipe.overlap_moe_expert_parallel_comm:
        return None
    wrong = (
        recipe.ep == 1
        or recipe.moe_token_dispatcher_type == "allgather"
        or (recipe.pp > 1 and recipe.vpp == 1)
        or recipe.precision == "fp32"
        or w.model.mtp_num_layers > 1
        or recipe.recompute_granularity == "full"
        or "moe" in (recipe.recompute_modules or ())
        or recipe.moe_shared_expert_overlap
    )
    expected = "ep > 1, alltoall or flex, chunks where pp > 1, at most one MTP layer, experts not recomputed"
    return ("overlap_moe_expert_parallel_comm", expected) if wrong else None


def _one_sharding(w: Workload) -> tuple[str, str] | None:
    recipe, expected = w.recipe, "no pipeline and no experts apart, where PyTorch shards the weights"
    wrong = recipe.data_parallel_sharding == "optim_grads_params" and (recipe.pp > 1 or recipe.ep > 1)
    return ("data_parallel_sharding", expected) if wrong else None


def _looped(w: Workload) -> tuple[str, str] | None:
    """torchtitan: schedules of one stage a rank take one, looped ones at least two, V-shaped ones exactly two."""
    if w.recipe.pp == 1:
        return None
    name = pipeline.choose(w.recipe.pipeline_schedule, w.recipe.pp, w.recipe.vpp)
    if name in ("1f1b", "gpipe") or w.recipe.vpp > 1:
        return None
    return "vpp", f"two chunks a rank or more for {name}"


def _experts_cut(w: Workload) -> tuple[str, str] | None:
    """Without a group of their own torchtitan cuts experts as it cuts the rest (models/llama4/infra/parallelize.py)."""
    cut = w.model.moe is None or w.recipe.ep > 1 or w.recipe.etp == w.recipe.tp
    return None if cut else ("etp", f"tp = {w.recipe.tp} where ep is 1")


def _cut(w: Workload) -> tuple[str, str] | None:
    """torchtitan cuts a model by the layers of a stage, embedding and output counted: not every number of stages comes
    of it. Two chunks of a looped schedule need no such number."""
    recipe = w.recipe
    if recipe.pp == 1 or recipe.vpp <= 2:
        return None
    weighted, stages = w.model.num_layers + 2 * (recipe.pipeline_remainder != "first"), recipe.pp * recipe.vpp
    if -(-weighted // -(-weighted // stages)) == stages:
        return None
    return "vpp", "as many stages as whole layers of a stage cut the model into"


def _domain(w: Workload) -> tuple[str, str] | None:
    wrong = [] if w.recipe.fast_domain is None else list(fast_domain.problems(w.recipe, w.dp, None))
    return ("fast_domain", wrong[0][1]) if wrong else None


def _grid(w: Workload) -> tuple[str, str] | None:
    wrong = list(summa.problems(w.model, w.recipe))
    if wrong:
        return wrong[0][0].removeprefix("recipe."), wrong[0][1]
    if w.recipe.tensor_parallel_algorithm == "summa" and w.framework != ANALYTIC:
        return "tensor_parallel_algorithm", f"1d: {w.framework} has no SUMMA; the framework {ANALYTIC} has"
    return None


def _where(
    key: str, beside: str, bad: Callable[[Recipe], object], expected: str, families: tuple[str, ...] = _CORE
) -> Rule:
    """What ``expected`` says of the field ``key`` is broken where the recipe is ``bad``; that reads ``beside`` too."""
    return Rule((key, *beside.split()), lambda w: (key, expected) if bad(w.recipe) else None, families)


def _with_shards(key: str, beside: str) -> Rule:
    """The switch ``key`` needs the one ``beside`` it, and a sharded optimizer."""
    return _where(
        key,
        f"{beside} data_parallel_sharding",
        lambda r: getattr(r, key) and not (getattr(r, beside) and r.data_parallel_sharding in _SHARDED),
        f"{beside} and a sharded optimizer",
    )


GRID = Rule(
    (
        *("tensor_parallel_algorithm", "tp", "tp2", "summa_panels", "cp", "cp_comm_type", "sequence_parallel"),
        *("precision", "tp_comm_overlap", "seq_length", "lora"),
    ),
    _grid,
    (),
)
RULES = (
    GRID,
    Rule(
        ("fast_domain", "tp", "tp2", "cp", "pp", "ep", "micro_batch_size", "microbatches", "data_parallel_shard_size"),
        _domain,
        (),
    ),
    Rule(("pipeline_schedule", "pp", "vpp"), _schedule, ("megatron", "primus", "torchtitan")),
    Rule(
        (
            *("pipeline_schedule", "pp", "vpp", "recompute_granularity", "recompute_method"),
            *("recompute_num_layers", "recompute_layer_ids"),
        ),
        _conflict,
        (),
    ),
    Rule(("pipeline_schedule", "pp", "vpp", "microbatches"), _few),
    Rule(("pipeline_schedule", "pp", "vpp"), _looped, ("torchtitan",)),
    Rule(("pp", "vpp", "pipeline_remainder"), _cut, ("torchtitan",)),
    Rule(("tp", "ep", "etp"), _experts_cut, ("torchtitan",)),
    _where(
        "overlap_p2p_comm",
        "pp vpp",
        lambda r: r.vpp > 1 and r.pp == 2 and r.overlap_p2p_comm is False,
        "messages beside compute where two ranks interleave chunks",
    ),
    Rule(("pp", "recompute_granularity", "recompute_num_layers"), _layers),
    _where("sequence_parallel", "tp", lambda r: r.sequence_parallel and r.tp == 1, "tp > 1", ()),
    _where(
        "sequence_parallel",
        "tp",
        lambda r: r.sequence_parallel is False and r.tp > 1,
        "on with tp > 1: torchtitan's plans of tensor parallelism shard the sequence",
        ("torchtitan",),
    ),
    _where(
        "sequence_parallel",
        "tp ep",
        lambda r: r.sequence_parallel is False and r.tp > 1 and r.ep > 1,
        "on where tensor and expert parallelism meet",
    ),
    _where(
        "tp_comm_overlap",
        "tp sequence_parallel",
        lambda r: r.tp_comm_overlap and (r.tp == 1 or r.sequence_parallel is not True),
        "tp > 1 and sequence_parallel",
    ),
    _with_shards("overlap_param_gather", "overlap_grad_reduce"),
    Rule(("data_parallel_sharding", "pp", "ep"), _one_sharding, ("megatron",)),
    Rule(
        (
            *("overlap_moe_expert_parallel_comm", "ep", "moe_token_dispatcher_type", "pp", "vpp", "precision"),
            *("recompute_granularity", "recompute_modules", "moe_shared_expert_overlap"),
        ),
        _experts_beside,
    ),
    _where(
        "delay_wgrad_compute",
        "overlap_moe_expert_parallel_comm",
        lambda r: r.delay_wgrad_compute and not r.overlap_moe_expert_parallel_comm,
        "overlap_moe_expert_parallel_comm",
    ),
    _where(
        "moe_shared_expert_overlap",
        "moe_token_dispatcher_type",
        lambda r: r.moe_shared_expert_overlap and r.moe_token_dispatcher_type == "allgather",
        "alltoall or flex",
    ),
    _where(
        "moe_token_dispatcher_type",
        "moe_flex_dispatcher_backend tp ep",
        lambda r: r.moe_token_dispatcher_type == "flex" and r.tp * r.ep == 1,
        "tp · ep > 1 for the flex dispatcher",
    ),
    _where(
        "recompute_modules",
        "recompute_granularity precision fp8_recipe",
        lambda r: (
            r.precision == "fp8"
            and r.fp8_recipe == "delayed"
            and {"moe_act", "layernorm"} & set(r.recompute_modules or ())
        ),
        "neither moe_act nor layernorm with delayed scaling",
    ),
    _with_shards("optimizer_cpu_offload", "use_precision_aware_optimizer"),
    _where(
        "offload_modules",
        "cpu_offloading_num_layers recompute_granularity",
        lambda r: r.offload_modules and (r.cpu_offloading_num_layers or r.recompute_granularity == "full"),
        "neither whole layers on the host nor whole layers recomputed",
    ),
    _where(
        "cpu_offloading_num_layers",
        "pp recompute_granularity",
        lambda r: r.cpu_offloading_num_layers and (r.pp > 1 or r.recompute_granularity not in (None, "none")),
        "no pipeline and no recompute",
    ),
)
