"""The shrink test: trainings on several processes against times that one process took of their layers, put back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.measure.closed import Trained
from harness.predictors.live import Here
from harness.score.gate import SHRINK, Check

__all__ = ["Shrunk", "check", "judged"]


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """``error``: restored step over that of the fastest repetition (other programs only add), less one; ``spread``: of the
    repetitions of the training, or of the timed steps, whichever is wider; ``waited``: share of the training in which a
    rank waited for a core, which one repetition alone shows, too."""

    id: str
    error: float
    spread: float
    waited: float = 0.0


def judged(done: Trained, alone: Here) -> Shrunk:
    """Raises as ``alone.project``."""
    step = alone.project(done.job.workload).step_seconds
    spread = max(done.spread, alone.spread())
    return Shrunk(id=done.job.id, error=step / min(done.rounds) - 1.0, spread=spread, waited=done.waited)


def check(suite: str, limit: float, found: Sequence[Shrunk]) -> Check:
    """Fails where a restored step is off by more than ``limit``; says nothing where measurements scatter, or a
    training waited for cores, by more."""
    clear = [each for each in found if max(each.spread, each.waited) <= limit]
    worst = max(clear, key=lambda each: abs(each.error), default=None)
    said = ", ".join(
        f"{each.id} {each.error:+.1%} (spread {each.spread:.0%}, no core {each.waited:.0%})" for each in found
    )
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
