"""What a schedule is evaluated with: seconds of its stages, messages and what surrounds it, of one run or of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from projector import pipeline
from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.memo import Recent, Same
from projector.operators.weights import Held
from projector.pipeline import Timeline
from projector.pipeline.exchange import Arrival, Exchange, Finish, arrival
from projector.pipeline.types import Compiled, Costs, Schedule
from projector.step.around import Around, around, together
from projector.step.boundary import activations, copies, tied
from projector.step.neighbours import pairs_up, pipelined
from projector.step.stages import StageTime
from projector.step.timing import CONTENTION, Clock

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Cycle:
    """Seconds by virtual stage (``forward``, ``inputs``, ``weight`` ``[…, stages]``; an unsplit backward is the sum of the
    last two), of each ``message`` between two of them ``[…, stages − 1]``, and of what surrounds them.

    ``hidden``: what forward and backward of each stage save when they run as a pair. ``deferred`` ``[…, pp]``: weight
    gradients computed after the last backward. ``between`` ``[…]``: seconds of the loop itself; ``unpaired`` ``[…]``:
    expert-parallel traffic of the first forward and the last backward of a step without pipeline. A leading axis is a batch
    of runs on one schedule, with the same switches.
    """

    compiled: Compiled
    forward: Floats
    inputs: Floats
    weight: Floats
    messages: Floats
    hidden: tuple[Floats, Floats] | None
    overlap_p2p: bool
    overlap_flush: bool
    exchange: Exchange
    deferred: Floats
    between: Floats
    unpaired: Floats

    def arrival(self) -> Arrival:
        """When the parameters of the stages are there."""
        return arrival(self.exchange, self.compiled.schedule.placement, self.forward)

    def play(self, start: Arrival, messages: Floats) -> Timeline:
        """The schedule with ``messages`` of these seconds."""
        release = start.release if start.release.any() else None
        stages = self.forward, self.inputs, self.weight
        switches = self.overlap_p2p, self.overlap_flush
        return pipeline.evaluate(self.compiled, *stages, messages, *switches, release=release, hidden=self.hidden)

    def last(self, end: Finish) -> Floats:
        """``[…]``: when the last rank has done what it owes to this step."""
        return np.asarray(np.maximum(end.ends.max(axis=-1), (end.ends + self.deferred).max(axis=-1)))

    def seconds(self, start: Arrival, end: Finish) -> Floats:
        """``[…]``: from one step to the next."""
        return np.asarray(start.base + self.last(end) + self.between + self.unpaired)


def cycle(
    resolved: Resolved,
    times: Sequence[StageTime],
    trained: Sequence[Held],
    clock: Clock,
    known: Sequence[Around] | None = None,
    shown: int | None = None,
) -> Cycle:
    """What the schedule of one run is evaluated with. ``times``, ``trained``: one per virtual stage; ``known``: what
    surrounds the pipeline on each rank, where it was priced before; ``shown``: micro-batches of the schedule that stands for
    the whole one (:mod:`projector.pipeline.periodic`)."""
    recipe = resolved.workload.recipe
    messages = _messages(resolved, clock, compiled_schedule(resolved, shown).schedule)
    forward = np.array([t.forward.seconds for t in times])
    inputs = np.array([t.inputs.seconds for t in times])
    weight = np.array([t.weight.seconds for t in times])
    hidden = _beside_neighbours(resolved, times)
    if hidden is not None:  # forwards and backwards that run alone expose it
        forward, inputs = forward + hidden[0], inputs + hidden[1]
    compiled = _tuned(resolved, forward, inputs, weight, messages, shown)
    schedule = compiled.schedule
    flush = not resolved.execution.pipeline.p2p_synchronous
    return Cycle(
        compiled=compiled,
        forward=forward,
        inputs=inputs,
        weight=weight,
        messages=messages,
        hidden=hidden,
        overlap_p2p=bool(recipe.overlap_p2p_comm) or flush,
        overlap_flush=flush,
        exchange=_exchange(resolved, clock, schedule, trained, times, known),
        deferred=_deferred(times, schedule.placement, resolved.workload.num_microbatches // schedule.copies),
        between=np.asarray(between_steps(resolved)),
        unpaired=np.asarray(_unpaired(resolved, times)),
    )


def stacked(cycles: Sequence[Cycle]) -> Cycle:
    """A batch of runs on one schedule that differ in seconds only (none of them with pairs)."""
    one = cycles[0]
    inside = {name: np.stack([getattr(c, name) for c in cycles]) for name in _SECONDS}
    around = {name: np.stack([getattr(c.exchange, name) for c in cycles]) for name in _AROUND}
    exchange: Exchange = replace(one.exchange, **around)  # type: ignore[arg-type]
    return replace(one, exchange=exchange, **inside)  # type: ignore[arg-type]


_SECONDS = ("forward", "inputs", "weight", "messages", "deferred", "between", "unpaired")
_AROUND = ("reduce", "gather", "optimizer", "last", "first", "idle", "tied")


def compiled_schedule(resolved: Resolved, microbatches: int | None = None) -> Compiled:
    """The schedule of the recipe for its stages and micro-batches, or another number of them (compiled once per process).

    With expert-parallel overlap each rank runs one forward more ahead, and forwards beside backwards from then on
    (Megatron-LM core/pipeline_parallel/schedules.py, combined_1f1b.py).
    """
    recipe = resolved.workload.recipe
    name = pipeline.choose(recipe.pipeline_schedule, recipe.pp, recipe.vpp)
    group = recipe.microbatch_group_size_per_vp_stage
    extra, m = int(pipelined(recipe)), microbatches or resolved.workload.num_microbatches
    return pipeline.compile(name, recipe.pp, recipe.vpp, m, group, extra, paired=bool(extra))


def by_rank(each: Sequence[Held], placement: Sequence[Sequence[int]]) -> tuple[Held, ...]:
    """The weights of every pipeline rank from those of its virtual stages; one object for ranks that hold the same ones."""
    found = []
    for own in placement:
        if len(own) == 1:
            found.append(each[own[0]])
        else:
            parts = [each[v] for v in own]
            found.append(_SUMS.get(tuple(map(Same, parts)), lambda parts=parts: sum(parts, Held({}))))  # type: ignore[misc]
    return tuple(found)


_SUMS: Recent[Held] = Recent(4096)


def _beside_neighbours(resolved: Resolved, times: Sequence[StageTime]) -> tuple[Floats, Floats] | None:
    """Seconds of expert-parallel traffic that forward and backward of each stage hide when they run as a pair."""
    if not pipelined(resolved.workload.recipe):
        return None
    forward = np.array([t.forward.saved for t in times])
    backward = np.array([t.inputs.saved for t in times])
    return forward, backward


def _unpaired(resolved: Resolved, times: Sequence[StageTime]) -> float:
    """Seconds that the first forward and the last backward of a step without pipeline show: they have no partner."""
    recipe = resolved.workload.recipe
    if not pairs_up(recipe) or pipelined(recipe):
        return 0.0
    return sum(part.saved for t in times for part in (t.forward, t.inputs))


def _deferred(times: Sequence[StageTime], placement: Sequence[Sequence[int]], m: int) -> Floats:
    """Seconds of weight gradients that each rank computes after its last backward ``[pp]``, in what is its bubble."""
    return np.array([m * sum(times[v].deferred for v in own) for own in placement])


def between_steps(resolved: Resolved) -> float:
    """Host seconds of a step around its operators."""
    recipe, runtime = resolved.workload.recipe, resolved.execution.runtime
    return runtime.loop_seconds(resolved.workload.gpus, bool(recipe.manual_gc))


def tuned(resolved: Resolved) -> bool:
    """Whether the order of the schedule depends on the times of its stages."""
    recipe = resolved.workload.recipe
    return pipeline.generator(pipeline.choose(recipe.pipeline_schedule, recipe.pp, recipe.vpp)).tuned is not None


def _tuned(
    resolved: Resolved, forward: Floats, inputs: Floats, weight: Floats, messages: Floats, shown: int | None
) -> Compiled:
    """The schedule, its order made for these times where it depends on them."""
    compiled = compiled_schedule(resolved, shown)
    schedule = compiled.schedule
    if pipeline.generator(schedule.name).tuned is None:
        return compiled
    costs = Costs(*(tuple(part.tolist()) for part in (forward, inputs, weight, messages)))
    return pipeline.compile(schedule.name, schedule.pp, schedule.vpp, schedule.microbatches, costs=costs)


def _exchange(
    resolved: Resolved,
    clock: Clock,
    schedule: Schedule,
    trained: Sequence[Held],
    times: Sequence[StageTime],
    known: Sequence[Around] | None,
) -> Exchange:
    """Seconds of what surrounds the pipeline. A rank's buffers are reduced chunk by chunk: each by its elements."""
    workload, sharing = resolved.workload, resolved.execution.data_parallel
    recipe = workload.recipe
    reduce, fetch, steps = np.zeros(len(trained)), np.zeros(len(trained)), []
    held = by_rank(trained, schedule.placement)
    if known is None:
        each = {id(whole): around(resolved, clock, whole) for whole in {id(whole): whole for whole in held}.values()}
        known = [each[id(whole)] for whole in held]
    for rank, (own, whole) in enumerate(zip(schedule.placement, held, strict=True)):
        to_reduce, to_fetch, to_step = known[rank]
        to_reduce += together(clock, copies(resolved, schedule, rank, whole))
        size = whole.dense + whole.expert
        for v in own:
            share = (trained[v].dense + trained[v].expert) / size if size else 0.0
            reduce[v], fetch[v] = share * to_reduce, share * to_fetch
        steps.append(to_step)
    shares = np.array([sharing.buckets(workload, own, v) for v, own in enumerate(trained)])
    return Exchange(
        reduce=reduce,
        gather=fetch,
        optimizer=np.array(steps),
        overlap_reduce=sharing.overlaps_last_reduction(recipe),
        overlap_gather=bool(recipe.overlap_param_gather),
        last=shares[:, 0],
        first=shares[:, 1],
        contention=CONTENTION / (1.0 + CONTENTION),
        idle=np.array([[each.host_excess for each in (t.forward, t.backward)] for t in times]).T,
        tied=np.array([together(clock, ops) for ops in tied(resolved, schedule, held)]),
    )


def _messages(resolved: Resolved, clock: Clock, schedule: Schedule) -> Floats:
    """Seconds of one activation sent from each virtual stage to the next ``[stages − 1]``."""
    host = resolved.execution.runtime.collective_us * 1e-6 if resolved.execution.pipeline.p2p_synchronous else 0.0
    sent = activations(resolved, schedule)
    priced = {id(op): clock.collective(op) + host if op else 0.0 for op in {id(op): op for op in sent}.values()}
    return np.array([priced[id(op)] for op in sent])
