"""One training step from the times of its stages: the schedule, what follows the last backward, and where time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from projector import pipeline
from projector.frameworks.types import Resolved
from projector.operators.step import Trainable, gather, optimizer, reduction
from projector.operators.types import Collective
from projector.pipeline import Timeline
from projector.pipeline.types import Compiled
from projector.stages import Part, StageTime, owned
from projector.timing import CONTENTION, Clock, chain

__all__ = ["Step", "compiled_schedule", "owned_by_rank", "run_step"]

_GROUP_KEY = {"tp": "tp_s", "etp": "tp_s", "ep": "ep_s", "cp": "cp_s", "pp": "pp_s"}
_BUCKET_SHARE = 0.1
"""Share of a reduction (or parameter gather) that is never hidden: its last (first) bucket. derived from Megatron's
bucket of max(40e6, 1e6·dp) elements against the 0.2–2e9 parameters of a rank."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Seconds of one step, its parts (they sum to it) and the share that rests on measured kernels."""

    seconds: float
    breakdown: Mapping[str, float]
    measured_share: float
    timeline: Timeline


def compiled_schedule(resolved: Resolved) -> Compiled:
    """The schedule of the recipe for its stages and micro-batches (compiled once per process)."""
    recipe = resolved.workload.recipe
    name = pipeline.choose(recipe.pipeline_schedule, recipe.pp, recipe.vpp)
    group = recipe.microbatch_group_size_per_vp_stage
    return pipeline.compile(name, recipe.pp, recipe.vpp, resolved.workload.num_microbatches, group)


def owned_by_rank(resolved: Resolved, stages: Sequence[Sequence[Part]]) -> tuple[Trainable, ...]:
    """Elements with gradients on every pipeline rank: its virtual stages together."""
    each = [owned(resolved, stage) for stage in stages]
    return tuple(
        Trainable(sum(each[v].dense for v in own), sum(each[v].expert for v in own))
        for own in compiled_schedule(resolved).schedule.placement
    )


def run_step(resolved: Resolved, times: Sequence[StageTime], trained: Sequence[Trainable], clock: Clock) -> Step:
    """Evaluates the schedule over the stages, then adds gradient reduction, optimizer and parameter gather.

    ``times``: one per virtual stage; ``trained``: one per pipeline rank.
    """
    recipe = resolved.workload.recipe
    m = resolved.workload.num_microbatches
    compiled = compiled_schedule(resolved)
    forward = np.array([t.forward.seconds for t in times])
    backward = np.array([t.backward.seconds for t in times])
    weight = np.minimum(np.array([t.weight for t in times]), backward)
    message = _message(resolved, clock)
    overlap = bool(recipe.overlap_p2p_comm) or not resolved.execution.p2p_synchronous
    flush = not resolved.execution.p2p_synchronous
    timeline = pipeline.evaluate(
        compiled, forward, backward - weight, weight, message, overlap_p2p=overlap, overlap_warmup_flush=flush
    )
    bare = pipeline.evaluate(compiled, forward, backward - weight, weight) if message else timeline
    placement = compiled.schedule.placement
    tails = [_tail(resolved, clock, times, own, trained[rank]) for rank, own in enumerate(placement)]
    ends = np.asarray(timeline.rank_end)
    last = float(np.max(ends + np.array([t.reduce for t in tails])))
    optimizer_s = max(t.optimizer for t in tails)
    gather_s = max(t.gather for t in tails)
    other = resolved.execution.step_ms * 1e-3
    seconds = last + optimizer_s + gather_s + other
    rank = int(np.argmax(timeline.rank_busy))
    breakdown = _breakdown(times, placement[rank], m)
    breakdown["bubble_s"] = max(0.0, float(bare.makespan) - float(bare.rank_busy[rank]))
    breakdown["pp_s"] = breakdown.get("pp_s", 0.0) + float(timeline.makespan) - float(bare.makespan)
    breakdown["dp_s"] += last - float(timeline.makespan) + gather_s
    breakdown["optimizer_s"] = optimizer_s
    breakdown["other_s"] = other
    on_rank = [times[v] for v in placement[rank]]
    measured = sum(t.forward.measured + t.backward.measured for t in on_rank) * m
    return Step(seconds=seconds, breakdown=breakdown, measured_share=measured / seconds, timeline=timeline)


@dataclass(frozen=True, slots=True)
class _Tail:
    """Seconds after the last backward of one rank."""

    reduce: float
    optimizer: float
    gather: float


def _tail(
    resolved: Resolved, clock: Clock, times: Sequence[StageTime], stages: Sequence[int], owned: Trainable
) -> _Tail:
    recipe, execution = resolved.workload.recipe, resolved.execution
    reduce = 0.0 if execution.reduce_every_microbatch else _seconds(clock, reduction(resolved, owned))
    fetch = 0.0 if recipe.data_parallel_sharding == "optim_grads_params" else _seconds(clock, gather(resolved, owned))
    if recipe.overlap_grad_reduce:
        window = sum(times[v].backward.seconds for v in stages)
        reduce = _exposed(reduce, window)
    if recipe.overlap_param_gather:
        window = sum(times[v].forward.seconds for v in stages)
        fetch = _exposed(fetch, window)
    phase = clock.phase(optimizer(resolved, owned))
    return _Tail(reduce=reduce, optimizer=phase.seconds, gather=fetch)


def _exposed(seconds: float, window: float) -> float:
    """What is left of a communication beside ``window`` seconds of compute, with the slow-down it causes there."""
    hidden = min(seconds * (1.0 - _BUCKET_SHARE), window)
    return seconds - hidden + CONTENTION * hidden


def _seconds(clock: Clock, ops: Sequence[Collective]) -> float:
    return sum(clock.collective(op) for op in ops)


def _message(resolved: Resolved, clock: Clock) -> float:
    """Seconds of one activation sent to the next stage (NVIDIA/Megatron-LM pipeline_parallel/schedules.py shapes)."""
    recipe, model = resolved.workload.recipe, resolved.workload.model
    if recipe.pp == 1:
        return 0.0
    tokens = recipe.seq_length * recipe.micro_batch_size / recipe.cp / (recipe.tp if recipe.sequence_parallel else 1)
    op = Collective(name="p2p", kind="send_recv", group="pp", bytes=tokens * model.hidden_size * 2.0)
    host = resolved.execution.collective_us * 1e-6 if resolved.execution.p2p_synchronous else 0.0
    return clock.collective(op) + host


def _breakdown(times: Sequence[StageTime], stages: Sequence[int], m: int) -> dict[str, float]:
    """Seconds of the step in which the rank works, by cause; exposed communication by the group it belongs to."""
    out = dict.fromkeys(("compute_s", "host_s", "tp_s", "ep_s", "cp_s", "pp_s", "dp_s"), 0.0)
    for phase in (chain([times[v].forward]) for v in stages), (chain([times[v].backward]) for v in stages):
        for part in phase:
            out["host_s"] += m * part.host_excess
            for group, seconds in part.exposed.items():
                out[_GROUP_KEY.get(group, "dp_s")] += m * seconds
            out["compute_s"] += m * (part.device - sum(part.exposed.values()))
    return out
