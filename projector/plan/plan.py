"""``plan``: forecasts a whole run from a workload, a number of tokens and assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from projector.dataclass import dataclass
from projector.errors import InputError, Unsupported
from projector.expectation import Knowledge
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster, Efficiency
from projector.kernels.settings import DEFAULT, Settings
from projector.parameter import Parameter, parameter
from projector.plan.assumptions import Ranges
from projector.plan.forecast import DAY, Forecast, Run, forecast
from projector.plan.goodput import Simulated, simulate
from projector.projection import Projection, project
from projector.step.slowest_chip import slowest
from projector.workload.workload import Workload

_RUNS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The forecast of a run and what it rests on. ``ranges``: every input by name with its range; ``sizes``: the run as
    stated, then on more GPUs."""

    tokens: float
    made: Projection
    ranges: Ranges
    forecast: Forecast
    simulated: Simulated
    sizes: tuple[Size, ...]


def plan(
    load: Workload,
    cluster: Cluster,
    tokens: float,
    ranges: Ranges,
    *,
    settings: Settings = DEFAULT,
    assumed: Sequence[str] = (),
    seed: int = 0,
    grow: bool = True,
    published: bool = False,
    known: Knowledge | None = None,
) -> Plan:
    """Returns the plan of ``load`` for ``tokens``. ``ranges``: the assumptions, and prices where there are any;
    ``assumed``: what the loader of the workload had to assume, which widens the interval of the step; ``grow``:
    forecasts also larger sizes; ``published``: see :func:`projector.projection.project`; ``known``: what the expected
    step rests on (None: what the package carries).

    Raises what :func:`projector.projection.project` does, and :class:`Unsupported` for a run that failures stop.
    """
    rests_on = known or Knowledge()

    def forecast_of(made: Projection, **further: Parameter) -> tuple[Ranges, Forecast]:
        inputs = {"step_seconds": step_range(made, rests_on, assumed), **ranges, **further}
        work, watts = made.resolved.workload, cluster.gpu.tdp_watts
        run = Run(tokens=tokens, tokens_per_step=work.tokens_per_step, gpus=work.gpus, watts=watts)
        return inputs, forecast(run, inputs, seed=seed)

    projection = project(load, cluster, settings=settings, published=published)
    chip = _slowest_chip(load, cluster, settings, projection) if grow else None
    inputs, whole_run = forecast_of(projection, **({"slowest_chip": chip} if chip else {}))
    middle = whole_run.middle
    simulated = simulate(
        middle.days * DAY * middle.goodput / inputs["run_over_steps"],
        middle.interval_s,
        inputs["checkpoint_s"].value,
        inputs["restart_s"].value,
        middle.between_failures_s,
        seed=seed,
        runs=_RUNS,
    )
    slow = slowest(efficiency_of(cluster.gpu), load.gpus)
    sizes = [Size(gpus=load.gpus, slowest=slow, made=projection, forecast=whole_run)]
    for size in _grown(load, cluster, settings) if grow else ():
        try:
            sizes.append(replace(size, forecast=forecast_of(size.made)[1]) if size.made else size)
        except Unsupported as error:
            sizes.append(replace(size, refused=str(error)))
    return Plan(
        tokens=tokens, made=projection, ranges=inputs, forecast=whole_run, simulated=simulated, sizes=tuple(sizes)
    )


def step_range(projection: Projection, known: Knowledge, assumed: Sequence[str]) -> Parameter:
    """Returns the seconds of a step that measured runs let expect, with the interval."""
    step = known.expect(projection, assumed)
    factor = step.middle / projection.step_seconds
    source = f"projected × {factor:.3f}, {100 * step.level:.0f} % interval; {step.rests_on}"
    return Parameter(step.middle, "derived", source, step.low, step.high, "s")


# The same run on more GPUs: more replicas, the same batch as long as every replica has a micro-batch to train on.
MOST = parameter(131_072, kind="published", source="the largest job that arXiv 2410.21680 foresees", unit="GPUs")
_SPREAD = "clock.spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The run on one number of GPUs: its step and its figures, or why there are none (``refused``). ``slowest``: time
    of a product on the slowest GPU over that on a usual one."""

    gpus: int
    made: Projection | None
    slowest: float
    forecast: Forecast | None = None
    refused: str = ""


def _grown(load: Workload, cluster: Cluster, settings: Settings) -> Iterator[Size]:
    """Yields the run on twice the GPUs, again and again up to :data:`MOST`, without figures. The batch stays while the
    framework takes it; else it doubles with the GPUs. Ends at the first size that no model covers, with the reason."""
    efficiency, gpus, batch = efficiency_of(cluster.gpu), 2 * load.gpus, load.recipe.global_batch_size
    while gpus <= MOST:
        projection, reason = None, ""
        for each in (batch, 2 * batch):
            grown = replace(load, gpus=gpus, recipe=replace(load.recipe, global_batch_size=each))
            try:
                projection, batch = project(grown, cluster, settings=settings), each
                break
            except (InputError, Unsupported) as error:
                reason = reason or str(error).partition("\n")[0]
        yield Size(gpus=gpus, made=projection, slowest=slowest(efficiency, gpus), refused="" if projection else reason)
        if projection is None:
            return
        gpus *= 2


def _slowest_chip(load: Workload, cluster: Cluster, settings: Settings, projection: Projection) -> Parameter | None:
    """Returns the time of a step at the ends of the known range of the spread of clocks, over that of ``projection``; None
    where there is no range."""
    known = efficiency_of(cluster.gpu)
    spread = known.parameters.get(_SPREAD)
    if spread is None or spread.low is None or spread.high is None:
        return None
    seconds = projection.step_seconds

    def times(end: float) -> float:
        other = Parameter(end, "assumed", "an end of its range")
        changed = Efficiency(gpu=known.gpu, parameters={**known.parameters, _SPREAD: other})
        return project(load, cluster, efficiency=changed, settings=settings).step_seconds / seconds

    source = f"{_SPREAD} {spread.low:g} to {spread.high:g}: {spread.source}"
    return Parameter(1.0, "derived", source, times(spread.low), times(spread.high))
