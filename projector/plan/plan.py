"""``plan``: a workload, a number of tokens and assumptions in; what the whole run will take out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from projector.dataclass import dataclass
from projector.errors import Unsupported
from projector.expectation import Knowledge
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster
from projector.kernels.settings import DEFAULT, Settings
from projector.parameter import Parameter
from projector.plan import growth
from projector.plan.assumptions import Ranges
from projector.plan.forecast import DAY, Forecast, Run, forecast
from projector.plan.goodput import Simulated, simulate
from projector.plan.growth import Size
from projector.projection import Projection, project
from projector.step.slowest import slowest
from projector.workload.workload import Workload

_RUNS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``ranges``: every input by name with its range; ``sizes``: the run as stated, then on more GPUs."""

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
    """``ranges``: the assumptions, and prices where there are any; ``assumed``: what the loader of the workload had
    to assume, which widens the interval of the step; ``published``: see :func:`projector.projection.project`;
    ``known``: what the expected step rests on, None: what the package carries.

    Raises what :func:`projector.projection.project` does, and :class:`Unsupported` for a run that failures stop.
    """
    known = known or Knowledge()
    made = project(load, cluster, settings=settings, published=published)
    chip = growth.slowest_chip(load, cluster, settings, made) if grow else None
    further: Mapping[str, Parameter] = {"slowest_chip": chip} if chip else {}
    every = {"step_seconds": step_range(made, known, assumed), **ranges, **further}
    found = forecast(_run(made, cluster, tokens), every, seed=seed)
    middle = found.middle
    simulated = simulate(
        middle.days * DAY * middle.goodput / every["run_over_steps"],
        middle.interval_s,
        every["checkpoint_s"].value,
        every["restart_s"].value,
        middle.between_failures_s,
        seed=seed,
        runs=_RUNS,
    )
    first = Size(gpus=load.gpus, slowest=slowest(efficiency_of(cluster.gpu), load.gpus), made=made, forecast=found)
    rest = _sizes(load, cluster, settings, tokens, ranges, assumed, seed, known) if grow else ()
    return Plan(tokens=tokens, made=made, ranges=every, forecast=found, simulated=simulated, sizes=(first, *rest))


def step_range(made: Projection, known: Knowledge, assumed: Sequence[str] = ()) -> Parameter:
    """Seconds of a step as measured runs let expect them, with the interval."""
    found = known.expect(made, assumed)
    source = f"projected × {found.middle / made.step_seconds:.3f}, {100 * found.level:.0f} % interval; {found.rests_on}"
    return Parameter(found.middle, "derived", source, found.low, found.high, "s")


def _run(made: Projection, cluster: Cluster, tokens: float) -> Run:
    load = made.resolved.workload
    return Run(tokens=tokens, tokens_per_step=load.tokens_per_step, gpus=load.gpus, watts=cluster.gpu.tdp_watts)


def _sizes(
    load: Workload,
    cluster: Cluster,
    settings: Settings,
    tokens: float,
    ranges: Ranges,
    assumed: Sequence[str],
    seed: int,
    known: Knowledge,
) -> Iterator[Size]:
    for size in growth.sizes(load, cluster, settings):
        if size.made is None:
            yield size
            continue
        try:
            every = {"step_seconds": step_range(size.made, known, assumed), **ranges}
            yield replace(size, forecast=forecast(_run(size.made, cluster, tokens), every, seed=seed))
        except Unsupported as error:
            yield replace(size, refused=str(error))
