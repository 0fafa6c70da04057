"""One training step from the times of its stages: the schedule, the work after the last backward, and where time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.operators.weights import WeightSet
from projector.pipeline import Timeline
from projector.pipeline.exchange import finish, spans
from projector.pipeline.trace import Span
from projector.step.cycle import Cycle, by_rank, compiled_schedule
from projector.step.stages import StageBlock, StageTime, owned

GROUP_KEY = {"tp": "tp_s", "tp2": "tp_s", "etp": "tp_s", "ep": "ep_s", "cp": "cp_s", "pp": "pp_s"}


@dataclass(frozen=True, kw_only=True)
class Step:
    """Seconds of one step, its parts (they sum to it) and the share that rests on measured kernels.

    ``timeline`` starts when the first rank has its parameters; ``spans``: optimizer, parameter gather and gradient
    reduction on the same clock. ``rank``: the pipeline rank that works longest, whose parts these are; ``gather``:
    seconds of its parameter gather that nothing hides.
    """

    seconds: float
    breakdown: Mapping[str, float]
    measured_share: float
    timeline: Timeline
    spans: tuple[Span, ...] = ()
    rank: int = 0
    gather: float = 0.0

    def waiting(self, seconds: float) -> Step:
        """Returns this step with ``seconds`` more in which its ranks wait for one another."""
        if not seconds:
            return self
        bubble = self.breakdown["bubble_s"] + seconds
        return replace(self, seconds=self.seconds + seconds, breakdown={**self.breakdown, "bubble_s": bubble})


def owned_by_rank(resolved: Resolved, stages: Sequence[Sequence[StageBlock]]) -> tuple[WeightSet, ...]:
    """Returns the weights with gradients on every pipeline rank: its virtual stages together."""
    return by_rank([owned(resolved, stage) for stage in stages], compiled_schedule(resolved).schedule.placement)


def run_step(runs: Cycle, times: Sequence[StageTime]) -> Step:
    """Evaluates a schedule over its stages between gradient reduction and optimizer of one step and the next.
    ``times``: one per virtual stage, those of which ``runs`` was made."""
    schedule, exchange = runs.compiled.schedule, runs.exchange
    placement, m = schedule.placement, schedule.each
    start = runs.arrival()
    timeline = runs.play(start, runs.messages)
    bare = runs.play(start, np.zeros_like(runs.messages)) if runs.messages.any() else timeline
    end = finish(exchange, timeline)
    base, last, reduced = float(start.base), float(runs.last(end)), float(end.ends.max())
    seconds, loop, unpaired = float(runs.seconds(start, end)), float(runs.between), float(runs.unpaired)
    rank = int(np.argmax(timeline.rank_busy))
    own = float(exchange.optimizer[rank]), float(start.gather[rank])
    breakdown = _breakdown(times, placement[rank], m)
    # Expert-parallel traffic of forwards and backwards that run without a partner.
    exposed = float(timeline.rank_busy[rank]) - _worked(times, placement[rank], m)
    breakdown["ep_s"] += unpaired + (max(0.0, exposed) if runs.hidden is not None else 0.0)
    # What the rank waits for beyond its own optimizer and gather: other ranks, in warm-up and flush.
    breakdown["bubble_s"] = max(0.0, base + float(bare.makespan) - float(bare.rank_busy[rank]) - sum(own))
    breakdown["pp_s"] += float(timeline.makespan) - float(bare.makespan)
    breakdown["dp_s"] += reduced - float(timeline.makespan) + own[1]
    breakdown["compute_s"] += last - reduced
    breakdown["optimizer_s"] = own[0]
    breakdown["other_s"] = loop
    on_rank = [times[v] for v in placement[rank]]
    measured = sum(t.forward.measured + t.backward.measured for t in on_rank) * m
    return Step(
        seconds=seconds,
        breakdown=breakdown,
        measured_share=measured / seconds,
        timeline=timeline,
        rank=rank,
        gather=own[1],
        spans=spans(exchange, start, end, placement),
    )


def _worked(times: Sequence[StageTime], stages: Sequence[int], m: int) -> float:
    """Returns the seconds in which a rank works when all its traffic beside neighbouring micro-batches is hidden."""
    return m * sum(times[v].forward.seconds + times[v].backward.seconds for v in stages)


def _breakdown(times: Sequence[StageTime], stages: Sequence[int], m: int) -> dict[str, float]:
    """Returns the seconds of the step in which the rank works, by cause; exposed communication by its group."""
    parts = dict.fromkeys(("compute_s", "host_s", "tp_s", "ep_s", "cp_s", "pp_s", "dp_s"), 0.0)
    for part in (phase for v in stages for phase in (times[v].forward, times[v].backward)):
        parts["host_s"] += m * part.host_excess
        for group, seconds in part.exposed.items():
            parts[GROUP_KEY.get(group, "dp_s")] += m * seconds
        parts["compute_s"] += m * (part.device - sum(part.exposed.values()))
    return parts
