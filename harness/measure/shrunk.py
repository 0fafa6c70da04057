"""The shrink test: trainings on several processes against times that one process took of their layers, put back."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import field, replace

from harness.measure.closed import Trained
from harness.measure.log import Disturbed
from harness.predictors.live import Here
from harness.score.gate import SHRINK, Check
from projector.benchmark.processes import cores
from projector.benchmark.timings import Asked
from projector.dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """``error``: restored step over that of the training on both sides of the timings, less one; ``by``: what else may have
    moved either; ``full``: the ranks took all cores, so that every other program disturbs them."""

    id: str
    error: float
    by: Disturbed = field(default_factory=Disturbed)
    full: bool = False


def disturbed(done: Trained, asked: Asked | None) -> Disturbed:
    """The repetitions of ``done`` and the timings of ``asked`` between them (None: of all that was timed).

    Waits for a core count as far as programs beside this one ran: threads of one rank wait for each other, too.
    """
    timed = [each for each in done.taken if each.found and asked in (None, each.turn.asked)]
    trained = [each for each in done.taken if each.turn.asked is None]
    paces = [each.pace for each in (*trained, *timed)]
    waited = (min(each.waited, each.others) for each in (*trained, *timed))
    return Disturbed(
        spread=max([done.spread, *(_doubt(each.found["step"]) for each in timed if each.found)]),
        waited=max(waited, default=0.0),
        pace=max(paces) / min(paces) - 1.0 if paces else 0.0,
    )


def _doubt(step: Sequence[float]) -> float:
    """Half the 90 % interval of a median over it, from its quartiles (normal scatter: 1.253 σ / √n, σ = range / 1.349)."""
    _, spread, samples, *_ = step
    return 1.645 * 1.253 / 1.349 * spread / math.sqrt(max(samples, 1))


def judged(done: Trained, alone: Here, asked: Asked | None) -> Shrunk:
    """``asked``: what was timed for ``alone``. Raises as ``alone.project``."""
    step = alone.project(done.job.workload).step_seconds
    error = step / statistics.fmean(done.rounds) - 1.0
    full = alone.device == "cpu" and done.job.workload.gpus >= cores()
    return Shrunk(id=done.job.id, error=error, by=disturbed(done, asked), full=full)


def confirmed(first: Shrunk, limit: float, again: Callable[[], Shrunk]) -> Shrunk:
    """``first``; where it is off by more than ``limit`` and nothing seemed to disturb it, with how far ``again`` is from it:
    an error of the model's repeats."""
    if abs(first.error) <= limit or first.by.most > limit:
        return first
    return replace(first, by=replace(first.by, again=abs(again().error - first.error)))


def check(suite: str, limit: float, found: Sequence[Shrunk]) -> Check:
    """Fails where a restored step is off by more than ``limit``; says nothing where the measurements were disturbed by more
    than that."""
    clear = [each for each in found if each.by.most <= limit]
    worst = max(clear, key=lambda each: abs(each.error), default=None)
    said = ", ".join(f"{each.id} {each.error:+.1%} ({each.by})" for each in found)
    said += "; ranks on all cores leave none to other programs" if any(each.full for each in found) else ""
    return Check(
        suite=suite,
        predictor="benchmark",
        name=SHRINK,
        found=None if worst is None else abs(worst.error),
        limit=limit,
        passed=bool(found) and (worst is None or abs(worst.error) <= limit),
        inconclusive=len(clear) < len(found),
        detail=said or "nothing was trained on several processes",
    )
