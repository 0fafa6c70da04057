"""The inputs of a schedule's evaluation, of one run or a batch: seconds of stages, messages and what surrounds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from projector import pipeline
from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.layers.step import optimizer
from projector.memory.holding import tuned
from projector.operators.types import Collective, HostWork, Operator
from projector.operators.weights import WeightSet
from projector.pipeline import Timeline
from projector.pipeline.exchange import Arrival, Exchange, Finish, arrival
from projector.pipeline.types import Compiled, Costs, Schedule
from projector.size import Floats, raw
from projector.step import muon, offload
from projector.step.combined_1f1b import pairs_microbatches, schedule_pairs
from projector.step.stage_messages import activations, copies, tied
from projector.step.stages import StageTime
from projector.step.timing import CONTENTION, Clock
from projector.workload.recipe import Recipe

#: Clocks of single ranks, where all ranks are alike.
NONE: Mapping[int, Clock] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Cycle:
    """Seconds by virtual stage (``forward``, ``inputs``, ``weight`` ``[…, stages]``; an unsplit backward is the sum of the
    last two), of each of ``messages`` between two stages ``[…, stages − 1]``, and around the pipeline (``exchange``).

    ``hidden``: what forward and backward of each stage save when they run as a pair. ``deferred`` ``[…, pp]``: weight
    gradients computed after the last backward. ``between`` ``[…]``: seconds of the loop itself; ``unpaired`` ``[…]``:
    expert-parallel traffic of the first forward and the last backward of a step without pipeline: they have no partner.
    A leading axis is a batch of runs on one schedule, with the same switches.
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
        """Returns when the parameters of the stages are there."""
        return arrival(self.exchange, self.compiled.schedule.placement, self.forward)

    def play(self, start: Arrival, messages: Floats) -> Timeline:
        """Evaluates the schedule from ``start``, with ``messages`` of these seconds."""
        release = start.release if start.release.any() else None
        stages = self.forward, self.inputs, self.weight
        switches = self.overlap_p2p, self.overlap_flush
        return pipeline.evaluate(self.compiled, *stages, messages, *switches, release=release, hidden=self.hidden)

    def last(self, end: Finish) -> Floats:
        """Returns ``[…]`` seconds after which the last rank has done all its work of the step."""
        return np.asarray(np.maximum(end.ends.max(axis=-1), (end.ends + self.deferred).max(axis=-1)))

    def seconds(self, start: Arrival, end: Finish) -> Floats:
        """Returns ``[…]`` seconds from one step to the next."""
        return np.asarray(start.base + self.last(end) + self.between + self.unpaired)


class Stages(NamedTuple):
    """Seconds of one micro-batch by virtual stage ``[…, stages]``: its phases (:class:`StageTime`), the ``deferred`` ones,
    those that forward and backward save when they run as a pair, and those in which the device waits for its host."""

    forward: Floats
    inputs: Floats
    weight: Floats
    deferred: Floats
    forward_saved: Floats
    inputs_saved: Floats
    forward_excess: Floats
    backward_excess: Floats


def stage_row(time: StageTime) -> Sequence[float]:
    """Returns the fields of :class:`Stages` for one virtual stage."""
    forward, inputs = time.forward, time.inputs
    phases = forward.seconds, inputs.seconds, time.weight.seconds, time.deferred
    return *phases, forward.saved, inputs.saved, forward.host_excess, time.backward.host_excess


def cycle(
    resolved: Resolved,
    times: Sequence[StageTime],
    trained: Sequence[WeightSet],
    clock: Clock,
    clocks: Mapping[int, Clock] = NONE,
    order: Compiled | None = None,
) -> Cycle:
    """Returns what the schedule of one run is evaluated with. ``times``, ``trained``: one per virtual stage; ``clocks``: by
    pipeline rank, where a rank is unlike the others; ``order``: the schedule, where it was made for other times."""
    schedule = compiled_schedule(resolved).schedule
    stages = Stages(*np.array([stage_row(time) for time in times]).T)
    held = by_rank(trained, schedule.placement)
    figures_of = {id(one): rank_figures(resolved, clock, one) for one in {id(one): one for one in held}.values()}
    ranks, stage_rows = (
        np.array(part).T
        for part in (
            [
                rank_figures(resolved, clocks[rank], whole) if rank in clocks else figures_of[id(whole)]
                for rank, whole in enumerate(held)
            ],
            [stage_figures(resolved, part, v) for v, part in enumerate(trained)],
        )
    )
    between = shared_gradient_seconds(resolved, clock, schedule, held)
    surrounding = exchange(resolved, schedule, ranks, stage_rows, between, stages)
    return cycle_from_stages(resolved, stages, messages(resolved, clock, schedule), surrounding, order=order)


def rank_figures(resolved: Resolved, clock: Clock, whole: WeightSet) -> Sequence[float]:
    """Returns, for a rank that trains ``whole``, the seconds of its gradient reduction, of its parameter gather and of
    its optimizer, and the elements it trains. Whatever the result depends on beside weights must stand in the key of
    :mod:`projector.step.batch` by which runs share it."""
    workload, sharing = resolved.workload, resolved.execution.data_parallel
    reduced, gathered = sharing.reduces_every_microbatch(workload), sharing.gathers_every_microbatch(workload.recipe)
    on_device = clock.phase(optimizer(resolved, whole)).seconds + muon.seconds(resolved, whole, clock)
    return (
        0.0 if reduced else serial_seconds(clock, sharing.reduction(workload, whole)),
        0.0 if gathered else serial_seconds(clock, sharing.gather(workload, whole)),
        on_device + offload.optimizer_seconds(resolved, whole),
        whole.dense + whole.expert,
    )


def once_a_step(resolved: Resolved, whole: WeightSet) -> dict[Operator, None]:
    """Returns the operators, as keys, that a kernel model prices of what a rank that trains ``whole`` does once a step."""
    computed = (op for op in optimizer(resolved, whole) if not isinstance(op, Collective | HostWork))
    return {op: None for op in (*computed, *(op for op, _ in muon.products(resolved, whole)))}  # noqa: C420


def stage_figures(resolved: Resolved, own: WeightSet, stage: int) -> Sequence[float]:
    """Returns the elements that a virtual ``stage`` trains, and their :meth:`DataParallel.buckets`."""
    return own.dense + own.expert, *resolved.execution.data_parallel.buckets(resolved.workload, own, stage)


def shared_gradient_seconds(
    resolved: Resolved, clock: Clock, schedule: Schedule, held: Sequence[WeightSet]
) -> tuple[Floats, Floats]:
    """Returns ``[…, pp]`` seconds in which each rank exchanges the gradients of its weights ``held`` with the other
    rank of its stages, and with the ranks that hold the same tensor."""
    copied = [copies(resolved, schedule, rank, whole) for rank, whole in enumerate(held)]
    tied_sums = tied(resolved, schedule, held)
    return as_array([serial_seconds(clock, ops) for ops in copied]), as_array(
        [serial_seconds(clock, ops) for ops in tied_sums]
    )


def cycle_from_stages(
    resolved: Resolved,
    stages: Stages,
    messages: Floats,
    surrounding: Exchange,
    microbatches: int | NDArray[np.int64] | None = None,
    shown: int | None = None,
    order: Compiled | None = None,
) -> Cycle:
    """Returns the :class:`Cycle` of ``stages``, ``messages`` and what surrounds them. ``microbatches``: of every run of
    a batch otherwise equal to ``resolved``; ``shown``: of the shorter schedule that stands for the whole
    (:mod:`projector.pipeline.periodic`); ``order``: the schedule, where it is made already."""
    recipe = resolved.workload.recipe
    forward, inputs, hidden = stages.forward, stages.inputs, None
    saved = stages.forward_saved, stages.inputs_saved
    if schedule_pairs(recipe):  # forwards and backwards without a partner save nothing
        forward, inputs, hidden = forward + saved[0], inputs + saved[1], saved
    compiled = order or _ordered(resolved, forward, inputs, stages.weight, messages, shown)
    schedule = compiled.schedule
    flush = not resolved.execution.pipeline.p2p_synchronous
    m = np.asarray(resolved.workload.num_microbatches if microbatches is None else microbatches) // schedule.copies
    deferred = stages.deferred[..., np.array(schedule.placement)].sum(axis=-1)
    return Cycle(
        compiled=compiled,
        forward=forward,
        inputs=inputs,
        weight=stages.weight,
        messages=messages,
        hidden=hidden,
        overlap_p2p=bool(recipe.overlap_p2p_comm) or flush,
        overlap_flush=flush,
        exchange=surrounding,
        deferred=m[..., None] * deferred,
        between=np.asarray(between_steps(resolved)),
        unpaired=_unpaired(recipe, *saved),
    )


def _unpaired(recipe: Recipe, forward: Floats, inputs: Floats) -> Floats:
    """Returns ``[…]`` exposed seconds of the first forward and the last backward of a step without pipeline, which have
    no partner, from the ``[…, stages]`` seconds that each stage saves with one."""
    alone = pairs_microbatches(recipe) and not schedule_pairs(recipe)
    return np.asarray((forward + inputs).sum(axis=-1)) if alone else np.zeros(())


def compiled_schedule(resolved: Resolved, microbatches: int | None = None) -> Compiled:
    """Returns the schedule of the recipe for its micro-batches, or for ``microbatches`` (compiled once per process).

    With expert-parallel overlap each rank runs one forward more ahead, and forwards beside backwards from then on
    (Megatron-LM core/pipeline_parallel/schedules.py, combined_1f1b.py).
    """
    recipe = resolved.workload.recipe
    name = pipeline.choose(recipe.pipeline_schedule, recipe.pp, recipe.vpp)
    group = recipe.microbatch_group_size_per_vp_stage
    extra, m = int(schedule_pairs(recipe)), microbatches or resolved.workload.num_microbatches
    return pipeline.compile(name, recipe.pp, recipe.vpp, m, group, extra, paired=bool(extra))


def by_rank(each: Sequence[WeightSet], placement: Sequence[Sequence[int]]) -> tuple[WeightSet, ...]:
    """Returns the weights of every pipeline rank from those of its virtual stages; equal ranks share one object."""
    sums: dict[tuple[int, ...], WeightSet] = {}
    for stages in placement:
        parts = [each[v] for v in stages]
        key = tuple(map(id, parts))
        if key not in sums:
            sums[key] = parts[0] if len(parts) == 1 else sum(parts, WeightSet({}))
    return tuple(sums[tuple(id(each[v]) for v in stages)] for stages in placement)


def between_steps(resolved: Resolved) -> float:
    """Returns the host seconds of a step outside its operators."""
    recipe, runtime = resolved.workload.recipe, resolved.execution.runtime
    return runtime.loop_seconds(resolved.workload.gpus, bool(recipe.manual_gc))


def _ordered(
    resolved: Resolved, forward: Floats, inputs: Floats, weight: Floats, messages: Floats, shown: int | None
) -> Compiled:
    """Returns the schedule, its order made for these times where it depends on them."""
    compiled = compiled_schedule(resolved, shown)
    schedule = compiled.schedule
    if not tuned(resolved):
        return compiled
    costs = Costs(*(tuple(part.tolist()) for part in (forward, inputs, weight, messages)))
    return pipeline.compile(schedule.name, schedule.pp, schedule.vpp, schedule.microbatches, costs=costs)


def exchange(
    resolved: Resolved, schedule: Schedule, ranks: Floats, own: Floats, between: Sequence[Floats], stages: Stages
) -> Exchange:
    """Returns the seconds of what surrounds the pipeline. A rank's buffers are reduced chunk by chunk, each in
    proportion to its elements. ``ranks`` ``[4, …, pp]``: :func:`rank_figures`; ``own`` ``[3, …, stages]``:
    :func:`stage_figures`; ``between``: :func:`shared_gradient_seconds`."""
    sharing, recipe, place = resolved.execution.data_parallel, resolved.workload.recipe, np.array(schedule.placement)
    reduce, fetch, steps, whole = ranks
    share = own[0][..., place] / np.where(whole > 0, whole, 1.0)[..., None]  # [..., pp, chunks]
    by_stage = np.zeros((2, *own[0].shape))
    for part, seconds in zip(by_stage, (reduce + between[0], fetch), strict=True):
        part[..., place] = share * seconds[..., None]
    return Exchange(
        reduce=by_stage[0],
        gather=by_stage[1],
        optimizer=steps,
        overlap_reduce=sharing.overlaps_last_reduction(recipe),
        overlap_gather=bool(recipe.overlap_param_gather),
        last=own[1],
        first=own[2],
        contention=CONTENTION / (1.0 + CONTENTION),
        idle=np.stack([stages.forward_excess, stages.backward_excess], axis=-2),
        tied=between[1],
    )


def as_array(values: Sequence[float]) -> Floats:
    """Returns ``[…, values]`` from numbers, or from columns of numbers."""
    return np.stack(np.broadcast_arrays(*[np.asarray(raw(value), np.float64) for value in values]), axis=-1)


def messages(resolved: Resolved, clock: Clock, schedule: Schedule) -> Floats:
    """Returns the seconds of one activation sent from each virtual stage to the next ``[…, stages − 1]``."""
    host = resolved.execution.runtime.collective_us * 1e-6 if resolved.execution.pipeline.p2p_synchronous else 0.0
    sent = activations(resolved, schedule)
    priced = {id(op): clock.collective(op) + host if op else 0.0 for op in {id(op): op for op in sent}.values()}
    return as_array([priced[id(op)] for op in sent]) if sent else np.zeros(0)


def serial_seconds(clock: Clock, ops: Sequence[Collective]) -> float:
    """Returns the seconds of collectives one after the other."""
    return sum(clock.collective(op) for op in ops)
