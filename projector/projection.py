"""``project``: the one place where workload, device, kernels, communication, schedule and memory meet."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from projector.collectives.model import Pricing
from projector.collectives.placement import groups as place
from projector.errors import NoMeasurement
from projector.frameworks import Resolved
from projector.frameworks.flops import flops_per_token
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster, Efficiency, GroupShape
from projector.kernels import backends
from projector.kernels import settings as kernel_settings
from projector.kernels.protocol import KernelModel
from projector.kernels.settings import Settings
from projector.kernels.simulate import Simulated, shared
from projector.layers.step import optimizer
from projector.layers.types import Collective, HostWork, Operator
from projector.memory.plan import MemoryPlan, plan
from projector.pipeline import Timeline
from projector.pipeline.schedules import zb_ilp
from projector.pipeline.trace import Span
from projector.pipeline.types import Costs
from projector.settle import arguments
from projector.settle.arguments import MODES
from projector.settle.workload import settled
from projector.step import filling, muon
from projector.step.communication import Traffic, traffic
from projector.step.crowd import crowded
from projector.step.run import owned_by_rank, run_step
from projector.step.stages import Part, StageTime, compute_operators, owned, parts, stage_time
from projector.step.timing import Clock
from projector.workload.layout import chunks
from projector.workload.workload import Workload

__all__ = ["MODES", "Projection", "project"]

_WITHOUT_WEIGHT_GRADIENT = 2 / 3
"""Forward and data gradient of a frozen product: two of its three passes (LoRA, Hu et al. 2021, section 4.1)."""


@dataclass(frozen=True, kw_only=True)
class Projection:
    """What a run will be. ``breakdown`` sums to ``step_seconds``: exposed seconds on the rank that works longest.

    ``measured_share``: share of the step that rests on measured kernels; ``stage_seconds``: forward and backward of
    each virtual stage for one micro-batch; ``bubble``: share of the step in which that rank waits for others;
    ``spans``: optimizer, parameter gather and gradient reduction of every rank on the clock of ``timeline``;
    ``mfu``: FLOPs of the model (those of forward and data gradient alone where adapters are trained) over the bf16 peak,
    whatever the precision of the products, so that fp8 and fp4 runs can pass 1; ``settings``: what the user set about
    kernels and clocks, ``key=value``; ``communication``: its collectives, where they were asked for.
    """

    step_seconds: float
    tgs: float
    mfu: float
    breakdown: Mapping[str, float]
    memory: MemoryPlan
    resolved: Resolved
    timeline: Timeline
    measured_share: float
    assumed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    bubble: float = 0.0
    spans: tuple[Span, ...] = ()
    stage_seconds: tuple[tuple[float, float], ...] = ()
    communication: tuple[Traffic, ...] = ()
    seconds_to_project: float = 0.0


def project(
    workload: Workload,
    cluster: Cluster,
    mode: str = "simulate",
    *,
    efficiency: Efficiency | None = None,
    settings: Settings = kernel_settings.DEFAULT,
    corrected: Callable[[KernelModel], KernelModel] | None = None,
    published: bool = False,
    communication: bool = False,
) -> Projection:
    """Projects one training step of ``workload`` on ``cluster``, with the kernels and clocks of ``settings``.

    ``corrected`` puts another kernel model over the one of ``mode``, such as factors of layers that were timed.
    ``published``: a figure of this run exists, so what its source left out is taken to be what makes it possible
    (:mod:`projector.settle.inferred`); a configuration that somebody plans is projected as it stands.
    ``communication``: with every
    collective of the step.

    Raises :class:`InputError` for a configuration that cannot run (all reasons at once), :class:`Unsupported` for one
    that no model here covers, :class:`NoMeasurement` in ``benchmark`` mode on a GPU without measured tables.
    """
    began = time.perf_counter()
    arguments.check(workload, cluster, mode, settings, efficiency)
    resolved = settled(workload, cluster, published=published)
    gpu = cluster.gpu
    layout = chunks(workload.model, resolved.workload.recipe)
    stages = [parts(resolved, chunk) for chunk in layout]
    empty = filling.idle(resolved)
    without_input = [parts(empty, chunk) for chunk in layout] if empty else []
    efficiency = efficiency or efficiency_of(gpu)
    model = _kernels(resolved, cluster, efficiency, mode, settings)
    price = _pricing(resolved, cluster, efficiency)
    clock = _clock(
        resolved, cluster, efficiency, corrected(model) if corrected else model, settings, stages, without_input, price
    )
    cache_: dict[tuple[int, bool], StageTime] = {}
    times = [stage_time(resolved, stage, clock, cache_) for stage in stages]
    step = run_step(resolved, times, [owned(resolved, stage) for stage in stages], clock)
    if empty:
        waited = [stage_time(empty, stage, clock, cache_) for stage in without_input]
        step = step.waiting(filling.seconds(times, waited, resolved.workload.recipe.pp))
    flops = flops_per_token(workload, "megatron-2025-04") * workload.tokens_per_step
    if workload.recipe.lora is not None:
        flops *= _WITHOUT_WEIGHT_GRADIENT
    return Projection(
        step_seconds=step.seconds,
        tgs=workload.tokens_per_step / step.seconds / workload.gpus,
        mfu=flops / step.seconds / workload.gpus / gpu.peak_of("bf16"),
        breakdown=step.breakdown,
        memory=plan(resolved, gpu),
        resolved=resolved,
        timeline=step.timeline,
        spans=step.spans,
        measured_share=step.measured_share,
        assumed=resolved.assumed,
        settings=(*settings.stated(gpu, efficiency), *_searched(step.timeline)),
        bubble=step.breakdown["bubble_s"] / step.seconds,
        stage_seconds=tuple((t.forward.seconds, t.backward.seconds) for t in times),
        communication=traffic(resolved, stages, clock, price, step) if communication else (),
        seconds_to_project=time.perf_counter() - began,
    )


def _searched(timeline: Timeline) -> tuple[str, ...]:
    """How far the order of a schedule that is searched for can be from the best."""
    schedule = timeline.compiled.schedule
    if schedule.name != zb_ilp.GENERATOR.name:
        return ()
    stages = timeline.compiled.stages
    forward, inputs, weight = (tuple(part.tolist()) for part in timeline.durations[: 3 * stages].reshape(3, stages))
    costs = Costs(forward, inputs, weight, (0.0,) * (stages - 1))
    gap = zb_ilp.gap(schedule, costs, float(timeline.makespan))
    return (f"pipeline_schedule={zb_ilp.GENERATOR.aliases[0]}: no order is more than {100 * gap:.1f} % shorter",)


def _clock(
    resolved: Resolved,
    cluster: Cluster,
    efficiency: Efficiency,
    model: KernelModel,
    settings: Settings,
    stages: Sequence[Sequence[Part]],
    without_input: Sequence[Sequence[Part]],
    price: Pricing,
) -> Clock:
    """Prices every operator of the step at once: kernels through one vectorised call, collectives when asked for."""
    ops = [*compute_operators([*stages, *without_input]), *_optimizers(resolved, stages)]
    times = model.times(ops)  # type: ignore[arg-type]
    seconds = dict(zip(ops, times.seconds.tolist(), strict=True))
    measured = frozenset(op for op, is_measured in zip(ops, times.measured.tolist(), strict=True) if is_measured)
    return Clock(
        kernels=seconds,
        measured=measured,
        collective=price.seconds,
        execution=resolved.execution,
        crowded=crowded(
            resolved, cluster, efficiency, settings, seconds if isinstance(model, Simulated) else ops, price
        ),
    )


def _optimizers(resolved: Resolved, stages: Sequence[Sequence[Part]]) -> list[Operator]:
    ops: list[Operator] = []
    for held in owned_by_rank(resolved, stages):
        ops += [op for op in optimizer(resolved, held) if not isinstance(op, Collective | HostWork)]
        ops += [op for op, _ in muon.products(resolved, held)]
    return ops


def _kernels(
    resolved: Resolved, cluster: Cluster, efficiency: Efficiency, mode: str, settings: Settings
) -> KernelModel:
    device, sustained = settings.device(cluster.gpu, efficiency)
    ours = shared(device, sustained, resolved.execution)
    simulated = backends.over(settings.gemm_backend, device, sustained, ours)
    if mode == "simulate":
        return simulated
    from projector.kernels import recorded

    if not recorded.available(cluster.gpu.name):
        raise NoMeasurement(f"no measurement for {cluster.gpu.name}")
    alone = Simulated(device, sustained, resolved.execution, alone=True) if simulated is ours else None
    return recorded.Recorded(cluster.gpu, simulated, alone=alone)


def _pricing(resolved: Resolved, cluster: Cluster, efficiency: Efficiency) -> Pricing:
    return Pricing(_groups(resolved, cluster), cluster, efficiency, resolved.workload.recipe.moe_deepep_num_sms)


def _groups(resolved: Resolved, cluster: Cluster) -> dict[str, GroupShape]:
    workload = resolved.workload
    return place(workload.recipe, workload.gpus, cluster, shards_apart=resolved.execution.shard_across_nodes)
