"""One training step from the times of its stages: the schedule, what follows the last backward, and where time went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from projector import pipeline
from projector.frameworks.types import Resolved
from projector.kernels.host import collection_seconds
from projector.layers.step import gather, optimizer, reduction
from projector.layers.types import Collective
from projector.layers.weights import Held
from projector.pipeline import Timeline
from projector.pipeline.exchange import Exchange, arrival, finish
from projector.pipeline.trace import Span
from projector.pipeline.types import Compiled, Costs
from projector.step import muon, offload
from projector.step.boundary import activations
from projector.step.neighbours import pairs_up, pipelined
from projector.step.stages import Part, StageTime, gathers_every_microbatch, owned, reduces_every_microbatch
from projector.step.timing import CONTENTION, Clock, chain

Floats = NDArray[np.float64]

__all__ = ["GROUP_KEY", "Step", "compiled_schedule", "owned_by_rank", "run_step"]

GROUP_KEY = {"tp": "tp_s", "etp": "tp_s", "ep": "ep_s", "cp": "cp_s", "pp": "pp_s"}
_BUCKET_SHARE = 0.1
"""Share of a reduction (or parameter gather) that is never hidden: its last (first) bucket. derived from Megatron's
bucket of max(40e6, 1e6·dp) elements against the 0.2–2e9 parameters of a rank."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Seconds of one step, its parts (they sum to it) and the share that rests on measured kernels.

    ``timeline`` starts when the first rank has its parameters; ``spans``: optimizer, parameter gather and gradient
    reduction on the same clock. ``rank``: the pipeline rank that works longest, of which the parts are; ``gather``: seconds
    of its parameter gather that nothing hides.
    """

    seconds: float
    breakdown: Mapping[str, float]
    measured_share: float
    timeline: Timeline
    spans: tuple[Span, ...] = ()
    rank: int = 0
    gather: float = 0.0

    def waiting(self, seconds: float) -> Step:
        """This step with ``seconds`` more in which its ranks wait for one another."""
        bubble = self.breakdown["bubble_s"] + seconds
        return replace(self, seconds=self.seconds + seconds, breakdown={**self.breakdown, "bubble_s": bubble})


def compiled_schedule(resolved: Resolved) -> Compiled:
    """The schedule of the recipe for its stages and micro-batches (compiled once per process).

    With expert-parallel overlap each rank runs one forward more ahead, and forwards beside backwards from then on
    (Megatron-LM core/pipeline_parallel/schedules.py, combined_1f1b.py).
    """
    recipe = resolved.workload.recipe
    name = pipeline.choose(recipe.pipeline_schedule, recipe.pp, recipe.vpp)
    group = recipe.microbatch_group_size_per_vp_stage
    extra, m = int(pipelined(recipe)), resolved.workload.num_microbatches
    return pipeline.compile(name, recipe.pp, recipe.vpp, m, group, extra, paired=bool(extra))


def _beside_neighbours(resolved: Resolved, times: Sequence[StageTime]) -> tuple[Floats, Floats] | None:
    """Seconds of expert-parallel traffic that forward and backward of each stage hide when they run as a pair."""
    if not pipelined(resolved.workload.recipe):
        return None
    forward, backward = (np.array([part.hidden.get("ep", 0.0) for part in parts]) for parts in (
        [t.forward for t in times], [t.backward for t in times]))  # fmt: skip
    return forward, backward


def _unpaired(resolved: Resolved, times: Sequence[StageTime]) -> float:
    """Seconds that the first forward and the last backward of a step without pipeline show: they have no partner."""
    recipe = resolved.workload.recipe
    if not pairs_up(recipe) or pipelined(recipe):
        return 0.0
    return sum(part.hidden.get("ep", 0.0) for t in times for part in (t.forward, t.backward))


def owned_by_rank(resolved: Resolved, stages: Sequence[Sequence[Part]]) -> tuple[Held, ...]:
    """Elements with gradients on every pipeline rank: its virtual stages together."""
    each = [owned(resolved, stage) for stage in stages]
    return tuple(_sum(each[v] for v in own) for own in compiled_schedule(resolved).schedule.placement)


def _sum(parts: Iterable[Held]) -> Held:
    return sum(parts, Held({}))


def run_step(resolved: Resolved, times: Sequence[StageTime], trained: Sequence[Held], clock: Clock) -> Step:
    """Evaluates the schedule over the stages between gradient reduction and optimizer of one step and the next.

    ``times``, ``trained``: one per virtual stage.
    """
    recipe = resolved.workload.recipe
    messages = _messages(resolved, clock)
    overlap = bool(recipe.overlap_p2p_comm) or not resolved.execution.p2p_synchronous
    flush = not resolved.execution.p2p_synchronous
    forward = np.array([t.forward.seconds for t in times])
    backward = np.array([t.backward.seconds for t in times])
    weight = np.minimum(np.array([t.weight for t in times]), backward)
    hidden = _beside_neighbours(resolved, times)
    if hidden is not None:  # forwards and backwards that run alone expose it
        forward, backward = forward + hidden[0], backward + hidden[1]
    compiled = _tuned(resolved, forward, backward - weight, weight, messages)
    placement = compiled.schedule.placement
    exchange = _exchange(resolved, clock, placement, trained, chain([t.backward for t in times]).crowding)
    start = arrival(exchange, placement, forward)

    def played(seconds: Floats) -> Timeline:
        release = start.release if start.release.any() else None
        return pipeline.evaluate(
            compiled, forward, backward - weight, weight, seconds, overlap, flush, release=release, hidden=hidden
        )

    timeline = played(messages)
    bare = played(np.zeros_like(messages)) if messages.any() else timeline
    end = finish(exchange, timeline)
    reduced, other = float(end.ends.max()), _between_steps(resolved)
    last = max(reduced, float((end.ends + _deferred(times, placement, resolved.workload.num_microbatches)).max()))
    ends = _unpaired(resolved, times)
    seconds = start.base + last + other + ends
    rank = int(np.argmax(timeline.rank_busy))
    mine = float(exchange.optimizer[rank]), float(start.gather[rank])
    breakdown = _breakdown(times, placement[rank], resolved.workload.num_microbatches)
    # Expert-parallel traffic of forwards and backwards that run without a partner.
    alone = float(timeline.rank_busy[rank]) - _worked(times, placement[rank], resolved.workload.num_microbatches)
    breakdown["ep_s"] += ends + (max(0.0, alone) if hidden is not None else 0.0)
    # What the rank waits for beyond its own optimizer and gather: other ranks, in warm-up and flush.
    breakdown["bubble_s"] = max(0.0, start.base + float(bare.makespan) - float(bare.rank_busy[rank]) - sum(mine))
    breakdown["pp_s"] += float(timeline.makespan) - float(bare.makespan)
    breakdown["dp_s"] += reduced - float(timeline.makespan) + mine[1]
    breakdown["compute_s"] += last - reduced
    breakdown["optimizer_s"] = mine[0]
    breakdown["other_s"] = other
    on_rank = [times[v] for v in placement[rank]]
    measured = sum(t.forward.measured + t.backward.measured for t in on_rank) * resolved.workload.num_microbatches
    return Step(
        seconds=seconds,
        breakdown=breakdown,
        measured_share=measured / seconds,
        timeline=timeline,
        rank=rank,
        gather=mine[1],
        spans=(*start.spans, *end.spans),
    )


def _deferred(times: Sequence[StageTime], placement: Sequence[Sequence[int]], m: int) -> Floats:
    """Seconds of weight gradients that each rank computes after its last backward ``[pp]``, in what is its bubble."""
    return np.array([m * sum(times[v].deferred for v in own) for own in placement])


def _between_steps(resolved: Resolved) -> float:
    """Seconds of a step that no operator stands for: logging, barriers, the loop itself, garbage collection."""
    workload = resolved.workload
    stall = collection_seconds(resolved.execution, workload.gpus, bool(workload.recipe.manual_gc))
    return resolved.execution.step_ms * 1e-3 + stall


def _tuned(resolved: Resolved, forward: Floats, inputs: Floats, weight: Floats, messages: Floats) -> Compiled:
    """The schedule, its order made for these times where it depends on them."""
    compiled = compiled_schedule(resolved)
    schedule = compiled.schedule
    if pipeline.generator(schedule.name).tuned is None:
        return compiled
    costs = Costs(*(tuple(part.tolist()) for part in (forward, inputs, weight, messages)))
    return pipeline.compile(schedule.name, schedule.pp, schedule.vpp, schedule.microbatches, costs=costs)


def _exchange(
    resolved: Resolved,
    clock: Clock,
    placement: Sequence[Sequence[int]],
    trained: Sequence[Held],
    crowding: float = CONTENTION,
) -> Exchange:
    """Seconds of what surrounds the pipeline. A rank's buffers are reduced chunk by chunk: each by its elements."""
    recipe = resolved.workload.recipe
    reduce, fetch, steps = np.zeros(len(trained)), np.zeros(len(trained)), []
    for own in placement:
        whole = _sum(trained[v] for v in own)
        size = whole.dense + whole.expert
        shares = {v: (trained[v].dense + trained[v].expert) / size if size else 0.0 for v in own}
        to_reduce = 0.0 if reduces_every_microbatch(resolved) else _seconds(clock, reduction(resolved, whole))
        to_fetch = 0.0 if gathers_every_microbatch(resolved) else _seconds(clock, gather(resolved, whole))
        for v, share in shares.items():
            reduce[v], fetch[v] = share * to_reduce, share * to_fetch
        on_device = clock.phase(optimizer(resolved, whole)).seconds + muon.seconds(resolved, whole, clock)
        steps.append(on_device + offload.optimizer_seconds(resolved, whole))
    return Exchange(
        reduce=reduce,
        gather=fetch,
        optimizer=np.array(steps),
        # FSDP2 under a pipeline reduces what the last backward has left, unit after unit
        overlap_reduce=bool(recipe.overlap_grad_reduce) and resolved.execution.data_parallel != "fsdp2",
        overlap_gather=bool(recipe.overlap_param_gather),
        bucket=_BUCKET_SHARE,
        contention=crowding,
    )


def _seconds(clock: Clock, ops: Sequence[Collective]) -> float:
    return sum(clock.collective(op) for op in ops)


def _messages(resolved: Resolved, clock: Clock) -> Floats:
    """Seconds of one activation sent from each virtual stage to the next ``[stages − 1]``."""
    host = resolved.execution.collective_us * 1e-6 if resolved.execution.p2p_synchronous else 0.0
    sent = activations(resolved, compiled_schedule(resolved).schedule.placement)
    return np.array([clock.collective(op) + host if op else 0.0 for op in sent])


def _worked(times: Sequence[StageTime], stages: Sequence[int], m: int) -> float:
    """Seconds in which a rank works when all its traffic beside neighbouring micro-batches is hidden."""
    return m * sum(times[v].forward.seconds + times[v].backward.seconds for v in stages)


def _breakdown(times: Sequence[StageTime], stages: Sequence[int], m: int) -> dict[str, float]:
    """Seconds of the step in which the rank works, by cause; exposed communication by the group it belongs to."""
    out = dict.fromkeys(("compute_s", "host_s", "tp_s", "ep_s", "cp_s", "pp_s", "dp_s"), 0.0)
    for phase in (chain([times[v].forward]) for v in stages), (chain([times[v].backward]) for v in stages):
        for part in phase:
            out["host_s"] += m * (part.host_excess - sum(part.waited.values()))
            for group, seconds in part.waited.items():
                out[GROUP_KEY.get(group, "dp_s")] += m * seconds
            for group, seconds in part.exposed.items():
                out[GROUP_KEY.get(group, "dp_s")] += m * seconds
            out["compute_s"] += m * (part.device - sum(part.exposed.values()))
    return out
