"""The shrink test: trainings on several processes against projections from times that one process took of their layers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from harness.measure.log import Disturbed
from harness.measure.train_plan import Trained
from harness.predictors.live import Here
from harness.score.gate import SHRINK, Check
from projector.benchmark.processes import cores
from projector.benchmark.timings import Asked
from projector.dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class ShrinkTest:
    """The shrink test of a run. ``error``: projected step over that of the training on both sides of the timings, less
    one; ``by``: disturbances of either; ``full``: the ranks took all cores, so that every other program disturbs them."""

    id: str
    error: float
    by: Disturbed = field(default_factory=Disturbed)
    full: bool = False


def disturbed(done: Trained, asked: Asked | None) -> Disturbed:
    """Returns how far the repetitions of ``done`` and the timings of ``asked`` between them (None: of all timings) were
    disturbed. Waits for a core count as far as programs beside this one ran: threads of one rank wait for each other,
    too."""
    timed = [turn for turn in done.taken if turn.found and asked in (None, turn.turn.asked)]
    trained = [turn for turn in done.taken if turn.turn.asked is None]
    paces = [turn.pace for turn in (*trained, *timed)]
    waited = (min(turn.waited, turn.others) for turn in (*trained, *timed))
    return Disturbed(
        spread=max([done.spread, *(_doubt(turn.found["step"]) for turn in timed if turn.found)]),
        waited=max(waited, default=0.0),
        pace=max(paces) / min(paces) - 1.0 if paces else 0.0,
    )


def _doubt(step: Mapping[str, float]) -> float:
    """Returns half the 90 % interval over the median, by its quartiles (normal: 1.253 σ / √n, σ = range / 1.349)."""
    return 1.645 * 1.253 / 1.349 * step["spread"] / math.sqrt(max(step["samples"], 1))


def judged(done: Trained, alone: Here, asked: Asked | None) -> ShrinkTest:
    """Tests a training; ``asked``: the timings made for ``alone``. Raises as ``alone.project``."""
    step = alone.project(done.job.workload).step_seconds
    error = step / statistics.fmean(done.rounds) - 1.0
    full = alone.device == "cpu" and done.job.workload.gpus >= cores()
    return ShrinkTest(id=done.job.id, error=error, by=disturbed(done, asked), full=full)


def confirmed(first: ShrinkTest, limit: float, again: Callable[[], ShrinkTest]) -> ShrinkTest:
    """Returns ``first``; where it is off by more than ``limit`` and nothing seemed to disturb it, with its distance from
    ``again``: an error of the model repeats."""
    if abs(first.error) <= limit or first.by.most > limit:
        return first
    return replace(first, by=replace(first.by, again=abs(again().error - first.error)))


def check(suite: str, limit: float, found: Sequence[ShrinkTest]) -> Check:
    """Returns a check that fails where a projected step is off by more than ``limit``; it is inconclusive where the
    measurements were disturbed by more than that."""
    clear = [test for test in found if test.by.most <= limit]
    worst = max(clear, key=lambda test: abs(test.error), default=None)
    detail = ", ".join(f"{test.id} {test.error:+.1%} ({test.by})" for test in found)
    detail += "; ranks on all cores leave none to other programs" if any(test.full for test in found) else ""
    return Check(
        suite=suite,
        predictor="benchmark",
        name=SHRINK,
        found=None if worst is None else abs(worst.error),
        limit=limit,
        passed=bool(found) and (worst is None or abs(worst.error) <= limit),
        inconclusive=len(clear) < len(found),
        detail=detail or "nothing was trained on several processes",
    )
