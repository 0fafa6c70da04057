"""Walks through the switches of a configuration, category by category: what each change would gain, and why.

Performance engineers climb this ladder by hand (AMD-AGI/Primus examples/moe_package: loss fusion, DeepEP, sync-free
stages, launch options, batch): every change of a category is tried alone on the best configuration so far, and the best
of them that fits in memory stays for the categories after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from projector import pipeline
from projector.dataclass import dataclass
from projector.errors import InputError, NoMeasurement, Unsupported, truncate
from projector.expectation import Knowledge
from projector.hardware.types import Gpu
from projector.parameter import parameter
from projector.posterior import Expectation
from projector.projection import Projection
from projector.search.axes import RUN_BY
from projector.search.remedy_kinds import Change
from projector.settle import capable, launch
from projector.workload.workload import Workload

_WORTH = parameter(
    0.002, kind="assumed", source="a change stays for less than this share of the step only by chance: convention"
)
_WORDS = 60  # characters of a reason in a table


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One change, tried on the best configuration before it. ``gain``: expected throughput over that, less 1, with its 90 %
    interval; ``moved``: the part of the step (and its seconds) that changed most; ``reason``: why there is no projection."""

    change: Change
    projection: Projection | None = None
    gain: float = 0.0
    low: float = 0.0
    high: float = 0.0
    moved: tuple[str, float] = ("", 0.0)
    kept: bool = False
    reason: str = ""


def walk(
    workload: Workload, gpu: Gpu, project: Callable[[Workload], Projection], known: Knowledge | None = None
) -> tuple[Projection, tuple[Tried, ...]]:
    """Returns the baseline and every change that was tried, in order, without those that ``gpu`` cannot do. ``project``
    may raise as :func:`projector.projection.project` does; the baseline's exceptions pass through. ``known``: what the
    gains rest on (None: what the package carries)."""
    known = known or Knowledge()
    best = baseline = project(workload)
    workload = _settled(workload, baseline)
    tried: list[Tried] = []
    for category in CATEGORIES:
        results = [
            _try(change, workload, best, project, known) for change in changes(category, best.resolved.workload, gpu)
        ]
        good = [
            t for t in results if t.projection and t.gain > _WORTH and t.projection.memory.order <= best.memory.order
        ]
        winner = max(good, key=lambda t: t.gain, default=None)
        tried += [replace(t, kept=t is winner) for t in results]
        if winner is not None and winner.projection is not None:
            workload, best = winner.change.on(workload), winner.projection
    return baseline, tuple(tried)


def singly(
    workload: Workload, gpu: Gpu, project: Callable[[Workload], Projection], known: Knowledge | None = None
) -> tuple[Tried, ...]:
    """Returns every change of every category, each tried alone on ``workload``; otherwise as :func:`walk`."""
    base = project(workload)
    settled, known = _settled(workload, base), known or Knowledge()
    every_change = (change for category in CATEGORIES for change in changes(category, base.resolved.workload, gpu))
    return tuple(_try(change, settled, base, project, known) for change in every_change)


def gains(step: Expectation, target: Projection, base: Projection) -> tuple[float, float, float]:
    """Returns (middle, low, high) of the gain: throughput of ``target`` over that of ``base``, less 1, for the ratio
    ``step`` of their steps."""
    tokens = target.tgs * target.step_seconds / (base.tgs * base.step_seconds)
    return tokens / step.middle - 1.0, tokens / step.high - 1.0, tokens / step.low - 1.0


def _settled(workload: Workload, baseline: Projection) -> Workload:
    """Returns ``workload`` with the recompute that its baseline settled on, so that all changes are judged with it."""
    recipe_of_baseline = baseline.resolved.workload.recipe
    names = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
    recipe = replace(workload.recipe, **{name: getattr(recipe_of_baseline, name) for name in names})
    return replace(workload, recipe=recipe)


def _try(
    change: Change, workload: Workload, best: Projection, project: Callable[[Workload], Projection], known: Knowledge
) -> Tried:
    try:
        projection = project(change.on(workload))
    except (InputError, Unsupported, NoMeasurement) as error:
        return Tried(change=change, reason=_short_reason(error))
    gain, low, high = gains(known.ratio(projection, best), projection, best)
    # per token, so that another batch size alone moves no part
    tokens = [p.tgs * p.step_seconds for p in (best, projection)]
    moves = {k: projection.breakdown[k] / tokens[1] - best.breakdown[k] / tokens[0] for k in projection.breakdown}
    part = max(moves, key=lambda k: abs(moves[k]))
    return Tried(
        change=change, projection=projection, gain=gain, low=low, high=high, moved=(part, moves[part] * tokens[0])
    )


def _short_reason(error: Exception) -> str:
    problems = getattr(error, "problems", None)
    text = f"{problems[0].key}: {problems[0].expected}" if problems else str(error).split(":")[0]
    return truncate(text, _WORDS)


def changes(category: str, workload: Workload, gpu: Gpu) -> Iterator[Change]:
    """Yields every change of ``category`` that differs from the resolved ``workload`` and that ``gpu`` can do."""
    recipe = workload.recipe
    for label, fields in _CANDIDATES[category](workload):
        new = any(getattr(recipe, name) != value for name, value in fields.items())
        if new and not capable.field_problems(gpu, fields):
            yield Change(kind=category, label=label, fields=tuple(fields.items()))


Candidates = Iterator[tuple[str, dict[str, Any]]]


def _parallelism(w: Workload) -> Candidates:
    sizes = ["tp", "pp", "cp"] + (["ep"] if w.model.moe else [])
    for name in sizes:
        size = getattr(w.recipe, name)
        for other in (2 * size, size // 2):
            if other >= 1:
                yield f"{name} {size} → {other}", {name: other}


def _schedule(w: Workload) -> Candidates:
    pp, stated = w.recipe.pp, w.recipe.vpp
    if pp == 1 or w.recipe.pipeline_model_parallel_layout is not None:
        return
    for name in launch.schedules_of(w.framework):
        chunks = pipeline.generator(name).chunks
        for vpp in (chunks,) if chunks is not None else sorted({2, 3, 4, stated} - {1}):
            if pipeline.choose(name, pp, vpp) == name and not pipeline.problems(name, pp, vpp, w.num_microbatches):
                yield f"{name}, {vpp} chunks a rank", {"pipeline_schedule": name, "vpp": vpp}
    stages = pp * stated
    yield (
        "embedding and loss counted as layers",
        {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True},
    )
    fewer = w.model.num_layers // stages - 1
    if stated == 1 and pp > 2 and fewer >= 1:
        yield (
            f"{fewer} layers on the first and the last stage",
            {"decoder_first_pipeline_num_layers": fewer, "decoder_last_pipeline_num_layers": fewer},
        )


def _recompute(w: Workload) -> Candidates:
    yield "no recompute", {"recompute_granularity": "none", "recompute_modules": ()}
    modules = ["core_attn", "layernorm", "moe_act" if w.model.moe else "mlp"] + ["mla_up_proj"] * (
        w.model.mla is not None
    )
    for module in modules:
        yield f"recompute {module}", {"recompute_granularity": "selective", "recompute_modules": (module,)}
    full = {"recompute_granularity": "full", "recompute_modules": ()}
    yield "recompute everything", {**full, "recompute_method": "uniform", "recompute_num_layers": 1}


def _precision(w: Workload) -> Candidates:
    yield "bf16", {"precision": "bf16"}
    yield "fp8, tensor-wise", {"precision": "fp8", "fp8_recipe": "tensorwise"}
    yield "fp8, block-wise", {"precision": "fp8", "fp8_recipe": "blockwise"}
    four_bits = (name for name in ("mxfp4", "nvfp4") if launch.family(w.framework) in RUN_BY[name])
    for name in ("mxfp8", *four_bits):
        yield name, {"precision": name, "fp8_recipe": name}


def _experts(w: Workload) -> Candidates:
    if w.model.moe is None:
        return
    deepep = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
    yield "DeepEP", deepep
    yield from ((f"sync-free stage {n}", {**deepep, "sync_free_stage": n}) for n in (1, 2, 3))
    yield "fused permutation and router", {"moe_permute_fusion": True, "moe_router_fusion": True}
    yield "one grouped GEMM kernel", {"moe_grouped_gemm": "fused"}
    yield "shared experts beside the exchange", {"moe_shared_expert_overlap": True}
    beside = {"overlap_moe_expert_parallel_comm": True}
    yield "exchange beside the next micro-batch", beside
    yield "the same, weight gradients delayed", {**beside, "delay_wgrad_compute": True}


def _communication(w: Workload) -> Candidates:
    yield "gradient reduction beside backward", {"overlap_grad_reduce": True}
    yield "parameter gather beside forward", {"overlap_param_gather": True}
    if w.recipe.tp > 1:
        yield "tensor-parallel overlap", {"tp_comm_overlap": True}
    yield "gradients reduced in bf16", {"grad_reduce_in_bf16": True}
    yield "gradient accumulation in the GEMM", {"gradient_accumulation_fusion": True}
    yield "fused cross-entropy", {"cross_entropy_fusion": "te"}
    if w.recipe.pp > 1:
        yield "output gradients deferred", {"defer_embedding_wgrad_compute": True}
    yield "optimizer state sharded", {"data_parallel_sharding": "optim"}
    yield "two instances of the optimizer", {"num_distributed_optimizer_instances": 2}
    yield "weights sharded (FSDP)", {"data_parallel_sharding": "optim_grads_params"}
    if w.recipe.data_parallel_sharding == "optim_grads_params":
        yield "weights kept for the backward", {"fsdp_reshard_after_forward": False}
        if w.recipe.xla_gpu_all_gather_combine_threshold_bytes:
            yield "XLA gathers weights apart", {"xla_gpu_all_gather_combine_threshold_bytes": 0}
    yield "no attention mask from the data loader", {"create_attention_mask_in_dataloader": False}
    yield "processes bound to NUMA nodes", {"numa_binding": True}
    yield "garbage collected on all ranks together", {"manual_gc": True}
    yield "graphs of attention and router", {"cuda_graph_scope": ("attn", "moe_router", "moe_preprocess")}


def _batch(w: Workload) -> Candidates:
    micro, size = w.recipe.micro_batch_size, w.recipe.global_batch_size
    for other in (2 * micro, micro // 2):
        if other >= 1:
            yield f"micro-batch {micro} → {other}", {"micro_batch_size": other}
    yield f"global batch {size} → {2 * size}", {"global_batch_size": 2 * size}


_CANDIDATES: dict[str, Callable[[Workload], Candidates]] = {
    "parallelism": _parallelism,
    "pipeline schedule": _schedule,
    "recompute": _recompute,
    "precision": _precision,
    "experts": _experts,
    "communication and host": _communication,
    "batch": _batch,
}
CATEGORIES = tuple(_CANDIDATES)
