"""``project``: the one place where workload, device, kernels, communication, schedule and memory meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from projector.dataclass import dataclass
from projector.frameworks import Resolved
from projector.frameworks.flops import flops_per_token
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster, Efficiency
from projector.kernels import settings as kernel_settings
from projector.kernels.protocol import KernelModel
from projector.kernels.settings import Settings
from projector.memory.plan import MemoryPlan, plan
from projector.parameter import parameter
from projector.pipeline import Timeline
from projector.pipeline.schedules import generator
from projector.pipeline.trace import Span
from projector.pipeline.types import Costs
from projector.settle import arguments
from projector.settle.workload import settle_checked
from projector.step.communication import Traffic, traffic
from projector.step.cycle import cycle
from projector.step.priced import priced
from projector.step.run import run_step
from projector.workload.workload import Workload

_WITHOUT_WEIGHT_GRADIENT = parameter(
    2 / 3,
    kind="derived",
    source="forward and data gradient of a frozen product: two of its three passes (LoRA, Hu et al. 2021, section 4.1)",
)


@dataclass(frozen=True, kw_only=True)
class Projection:
    """The projection of one training step. ``breakdown`` sums to ``step_seconds``: exposed seconds on the rank that
    works longest.

    ``measured_share``: share of the step that rests on measured kernels; ``stage_seconds``: forward and backward of
    each virtual stage for one micro-batch; ``bubble``: share of the step in which that rank waits for others;
    ``spans``: optimizer, parameter gather and gradient reduction of every rank on the clock of ``timeline``; ``mfu``:
    FLOPs of the model (those of forward and data gradient alone where adapters are trained) over the bf16 peak,
    whatever the precision of the products, so that fp8 and fp4 runs can pass 1; ``settings``: what the user set about
    kernels and clocks, ``key=value``; ``communication``: the step's collectives, where they were asked for.
    """

    step_seconds: float
    tgs: float
    mfu: float
    breakdown: Mapping[str, float]
    memory: MemoryPlan
    resolved: Resolved
    cluster: Cluster
    timeline: Timeline
    measured_share: float
    assumed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    bubble: float = 0.0
    spans: tuple[Span, ...] = ()
    stage_seconds: tuple[tuple[float, float], ...] = ()
    communication: tuple[Traffic, ...] = ()

    def __repr__(self) -> str:
        from projector.card import text

        return text(self)

    def _repr_html_(self) -> str:
        from projector.card import html

        return html(self)

    def plot(self, what: str = "step") -> Any:
        """Returns a matplotlib figure of the parts of a ``step``, the ``timeline`` of the pipeline, or the
        ``memory`` of its ranks. Raises :class:`InputError` for another word."""
        from projector.card import figure

        return figure(self, what)

    def to_dict(self) -> dict[str, Any]:
        """Returns figures, recipe, memory, the step to expect and what was assumed, as JSON values."""
        from projector.card import values

        return values(self)


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
    (:mod:`projector.settle.workload`); a configuration that somebody plans is projected as it stands.
    ``communication``: with every collective of the step.

    Raises :class:`InputError` for a configuration that cannot run (all reasons at once), :class:`Unsupported` for one
    that no model here covers, :class:`NoMeasurement` in ``benchmark`` mode on a GPU without measured tables.
    """
    arguments.check(workload, cluster, mode, settings, efficiency)
    resolved = settle_checked(workload, cluster, published=published)
    gpu = cluster.gpu
    efficiency = efficiency or efficiency_of(gpu)
    prices = priced(resolved, cluster, efficiency, mode, settings, corrected)
    resolved = prices.resolved  # the same object that caches are keyed by
    clock = prices.clock
    step = run_step(cycle(resolved, prices.times, prices.held, clock), prices.times).waiting(prices.idle)
    schedule = step.timeline.compiled.schedule
    flops = flops_per_token(workload, "megatron-2026-05") * workload.tokens_per_step
    passes = (3 * _WITHOUT_WEIGHT_GRADIENT if workload.recipe.lora is not None else 3) + workload.recipe.reference
    flops *= passes / 3
    return Projection(
        step_seconds=step.seconds,
        tgs=workload.tokens_per_step / step.seconds / workload.gpus,
        mfu=flops / step.seconds / workload.gpus / gpu.peak_of("bf16"),
        breakdown=step.breakdown,
        memory=plan(resolved, gpu, schedule if generator(schedule.name).tuned else None),
        resolved=resolved,
        cluster=cluster,
        timeline=step.timeline,
        spans=step.spans,
        measured_share=step.measured_share,
        assumed=resolved.assumed,
        settings=(*settings.stated(gpu, efficiency), *_searched(step.timeline)),
        bubble=step.breakdown["bubble_s"] / step.seconds,
        stage_seconds=tuple((time.forward.seconds, time.backward.seconds) for time in prices.times),
        communication=traffic(resolved, prices.parts, clock, prices.price, step) if communication else (),
    )


def _searched(timeline: Timeline) -> tuple[str, ...]:
    """Returns how far the order of a schedule that is searched for can be from the best, as a setting."""
    schedule = timeline.compiled.schedule
    kind_of_schedule = generator(schedule.name)
    if kind_of_schedule.gap is None:
        return ()
    stages = timeline.compiled.stages
    forward, inputs, weight = (tuple(part.tolist()) for part in timeline.durations[: 3 * stages].reshape(3, stages))
    costs = Costs(forward, inputs, weight, (0.0,) * (stages - 1))
    gap = kind_of_schedule.gap(schedule, costs, float(timeline.makespan))
    return (f"pipeline_schedule={kind_of_schedule.aliases[0]}: no order is more than {100 * gap:.1f} % shorter",)
