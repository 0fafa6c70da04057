"""Puts timings back into the whole run: measured phases in the schedule, measured collectives around it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from projector.benchmark.conditions import Live, measured_phase
from projector.benchmark.prices import Named, Price, is_message, possible, stages_of, updates
from projector.benchmark.timed_run import TimedRun
from projector.benchmark.timings import Asked, CollectiveWanted, StageWanted, Timings
from projector.collectives.placement import groups
from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.hardware.types import Cluster
from projector.layers.step import optimizer
from projector.mechanisms import Execution
from projector.operators.types import Collective, Operator
from projector.operators.weights import WeightSet
from projector.projection import Projection
from projector.step.cycle import compiled_schedule, cycle
from projector.step.run import Step, run_step
from projector.step.stages import owned, stage_time
from projector.step.timing import Clock, Phase

_SCALAR = 4.0  # bytes
_MOST_INTERRUPTED = 1.5  # a step beyond so many sums of its parts was disturbed more than every step is


def collectives_needed(
    resolved: Resolved, stages: Sequence[Named], cluster: Cluster, ranks: int, sharded: bool
) -> tuple[CollectiveWanted, ...]:
    """Returns the collectives of a step outside its layers, each once, as ``ranks`` ranks can time them."""
    shapes = groups(resolved.workload.recipe, resolved.workload.gpus, cluster)
    needed: dict[CollectiveWanted, None] = {}

    def note(op: Collective) -> float:
        timeable = possible(op, shapes, ranks, resolved)
        if timeable is not None and (is_message(op) or not sharded):
            needed[timeable] = None
        return 0.0

    _step_of(resolved, stages, _UniformClock({}, frozenset(), note, resolved.execution))
    return tuple(needed)


def restored(asked: Asked, timings: Timings, simulated: Projection, cluster: Cluster) -> Projection:
    """Returns ``simulated`` with the step that ``timings`` make."""
    # Weight gradients where they were timed: in the backward of their layer
    recipe = replace(simulated.resolved.workload.recipe, defer_embedding_wgrad_compute=False)
    resolved = replace(simulated.resolved, workload=replace(simulated.resolved.workload, recipe=recipe))
    stages = stages_of(resolved)
    execution = _without_host_costs(resolved.execution)
    if cluster.gpu.vendor == "cpu":  # what moves data is the core that computes: nothing hides
        execution = execution.evolve(data_parallel={"overlap": 0.0})
    price = Price(resolved, cluster, timings, asked)
    phases = _phases(resolved, stages, asked, timings, simulated, cluster)
    clock = Live({}, frozenset(), price, execution, phases=phases)
    step = _step_of(replace(resolved, execution=execution), stages, clock)
    # all ranks send the norm of the gradients (several that timed an update had it there) and the loss once a step
    scalars = price(Collective("norm_or_loss", "all_reduce", "world", _SCALAR)) * (1 if asked.ranks > 1 else 2)
    breakdown = {**step.breakdown, "dp_s": step.breakdown["dp_s"] + scalars}
    step = replace(step, seconds=step.seconds + scalars, breakdown=breakdown)
    ratio = step.seconds / simulated.step_seconds
    times = [stage_time(resolved, stage.parts, clock) for stage in stages]
    outside = step.breakdown["optimizer_s"] + (step.breakdown["dp_s"] if price.exact else 0.0)
    return replace(
        simulated,
        step_seconds=step.seconds,
        tgs=simulated.tgs / ratio,
        mfu=simulated.mfu / ratio,
        breakdown=step.breakdown,
        timeline=step.timeline,
        spans=step.spans,
        measured_share=min(1.0, step.measured_share + outside / step.seconds),
        bubble=step.breakdown["bubble_s"] / step.seconds,
        stage_seconds=tuple((each.forward.seconds, each.backward.seconds) for each in times),
    )


@dataclass(frozen=True, slots=True)
class Compared:
    """Seconds of one part in one direction. ``recorded``: by recorded tables (None: the GPU has none); ``tabled``:
    share of its kernels' seconds that these cover."""

    part: str
    simulated: float
    measured: float
    spread: float | None = None
    recorded: float | None = None
    tabled: float = 0.0


def compared(asked: Asked, timings: Timings, simulated: Projection, cluster: Cluster) -> Iterator[Compared]:
    """Yields simulated against measured seconds of one micro-batch, each kind of part once."""
    resolved = simulated.resolved
    times = _PartTimes(timings, resolved.workload.num_microbatches)
    ran = TimedRun(resolved, asked, cluster, timings.source)
    seen: set[str] = set()
    for stage in stages_of(resolved):
        for key, wanted in chain.from_iterable(made for made, _ in stage.each()):
            if key not in seen:
                seen.add(key)
                laps = (f"forward {key}", f"first backward {key}")
                words, phases, tables = ("forward", "backward"), ran.phases(key, wanted), ran.recorded(key, wanted)
                for word, phase, recorded, seconds, lap in zip(words, phases, tables, times.of(key), laps, strict=True):
                    yield Compared(f"{key}, {word}", phase.seconds, seconds, timings.laps[lap].spread, *recorded)


def anchored(asked: Asked, timings: Timings, simulated: Projection, cluster: Cluster) -> Anchored:
    """Returns activations as counted while layers ran, and the peak of the whole run with that much more of them."""
    ran, rows = TimedRun(simulated.resolved, asked, cluster, timings.source), dict[str, tuple[float, float]]()
    projected = counted = 0.0
    for stage in stages_of(simulated.resolved):
        for key, wanted in chain.from_iterable(made for made, _ in stage.each()):
            if key not in rows:
                rows[key] = ran.saved(key, wanted), timings.saved[key]
            projected, counted = projected + rows[key][0], counted + rows[key][1]
    memory = simulated.memory
    more = memory.components["activations"] * (counted / max(projected, 1.0) - 1.0)
    return Anchored(rows, memory.allocated, memory.allocated + more, memory.usable)


@dataclass(frozen=True)
class Anchored:
    """Memory with counted activations. ``parts``: bytes of one micro-batch of what ran, by part, (projected, counted).
    ``projected``, ``peak``: live bytes of the whole run at its peak, as projected and as counted; ``usable`` bytes."""

    parts: Mapping[str, tuple[float, float]]
    projected: float
    peak: float
    usable: float


def _step_of(resolved: Resolved, stages: Sequence[Named], clock: Clock) -> Step:
    times = [stage_time(resolved, stage.parts, clock) for stage in stages]
    return run_step(cycle(resolved, times, [owned(resolved, stage.parts) for stage in stages], clock), times)


def _without_host_costs(execution: Execution) -> Execution:
    """Returns the framework without host costs of its own, which measured times have."""
    costs = ("launch_us", "collective_us", "sync_us", "layer_us", "gc_steps", "step_ms")
    return execution.evolve(runtime=dict.fromkeys(costs, 0.0))


class _UniformClock(Clock):
    """A clock to which all phases are equal: it is only asked which collectives there are."""

    def phase(self, *_: object, **__: object) -> Phase:
        return measured_phase(1e-3)

    def work(self, *_: object) -> float:
        return 1e-3


def _phases(
    resolved: Resolved, stages: Sequence[Named], asked: Asked, timings: Timings, simulated: Projection, cluster: Cluster
) -> dict[tuple[Operator, ...], Phase]:
    """Returns measured phases by the operators that stand for them."""
    phases: dict[tuple[Operator, ...], Phase] = {}
    ran = TimedRun(replace(resolved, execution=_without_host_costs(resolved.execution)), asked, cluster, timings.source)
    times = _PartTimes(timings, resolved.workload.num_microbatches)
    weight_share = _weight_share(simulated)
    for stage in stages:
        for made, part in stage.each():
            forward, backward = map(sum, zip(*(times.of(key) for key, _ in made), strict=True))
            first, second = ran.restored(made, part, forward, backward)
            phases[part.block.forward], phases[part.backward] = first, second
            if part.block.backward_weight:
                phases[part.block.backward_weight] = measured_phase(backward * weight_share)
    by_stage = [owned(resolved, stage.parts) for stage in stages]
    placement = compiled_schedule(resolved).schedule.placement
    for numbers, update in zip(placement, updates(resolved, stages, asked.sharded), strict=True):
        weights = sum((by_stage[v] for v in numbers), WeightSet({}))
        phases[optimizer(resolved, weights)] = measured_phase(times.update(update))
    return phases


def _weight_share(simulated: Projection) -> float:
    """Returns the share of a backward that a split schedule may postpone; of no effect on others."""
    compiled = simulated.timeline.compiled
    if not compiled.schedule.split:
        return 0.0
    n = compiled.stages
    _, inner, weight = (simulated.timeline.durations[i * n : (i + 1) * n].sum() for i in range(3))
    return float(weight / max(inner + weight, 1e-12))


class _PartTimes:
    """Seconds of parts in a step of ``m`` micro-batches, out of the laps of the shortened one.

    Interruptions strike anywhere: a part's median misses them, the step as a whole has them. All parts are stretched by
    what the shortened step takes beyond the sum of its medians.
    """

    def __init__(self, timings: Timings, m: int) -> None:
        self._laps, self._timings, self._m = timings.laps, timings, m
        steps = max(timings.step.samples, 1)
        whole = sum(lap.median * lap.samples / steps for lap in timings.laps.values())
        self.stretch = min(max(timings.step.median / max(whole, 1e-12), 1.0), _MOST_INTERRUPTED)

    def of(self, key: str) -> tuple[float, float]:
        """Returns (forward, backward) seconds of one micro-batch, the mean over all of a step."""
        forward, backward = self._mean(f"forward {key}"), self._mean(f"backward {key}")
        if key == "head":  # between the two the loss is scaled and added up
            forward += self._laps["loss"].median + self._laps["add loss"].median
        return forward * self.stretch, backward * self.stretch

    def _mean(self, name: str) -> float:
        """Returns the mean over all micro-batches; the first gives gradients their place and casts weights."""
        laps, m = self._laps, self._m
        later = laps.get(name) or laps[f"first {name}"]
        return (laps.get(f"first {name}", later).median + (m - 1) * later.median) / m

    def update(self, stage: StageWanted) -> float:
        """Returns the seconds to update a stage: the shortened step's, times the ratio of all its weights to those of
        the step where both were timed alone.

        A stage that was not timed takes as long an element as the nearest timed one: the update reads and writes.
        """
        timed, size = self._timings.updated, stage.elements(self._timings.weights)
        nearest = min(timed, key=lambda key: (key != stage.key, abs(math.log(timed[key] / size))))
        short = max(self._timings.update_short.median, 1e-12)
        ratio = self._timings.updates[nearest].median * (size / timed[nearest]) / short
        return self._laps["optimizer"].median * ratio * self.stretch
