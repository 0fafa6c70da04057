"""Finds the switch for a symptom: for every part that takes much of a step, the changes that shorten it most, each
tried alone on the run as it is. Nothing is listed beforehand: what helps is what the projections of this run say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from projector.dataclass import dataclass
from projector.parameter import parameter
from projector.projection import Projection
from projector.search.explore import Tried

_SYMPTOM = parameter(0.05, kind="assumed", source="share of a step from which a part is worth a switch: convention")
_FULL = parameter(
    0.9, kind="assumed", source="share of a device's memory from which room is worth a switch: convention"
)
_MOST = 3  # switches listed for a symptom
MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """A part that takes much of the step or of the memory. ``part``: key of the breakdown, or ``memory``; ``share``: of
    the step, or of the memory; ``answers``: (change, share of this part that it takes away), the one with the largest
    expected gain first."""

    part: str
    share: float
    answers: tuple[tuple[Tried, float], ...]


def symptoms(base: Projection, alone: Sequence[Tried]) -> Iterator[Symptom]:
    """Yields the symptoms of ``base``, the largest first. ``alone``: changes that were tried on it one by one."""
    good = [each for each in alone if each.projection and each.projection.memory.order <= base.memory.order]
    parts = sorted(base.breakdown, key=lambda part: -base.breakdown[part])
    for part in parts:
        share = base.breakdown[part] / base.step_seconds
        if share >= _SYMPTOM:
            gaining = [each for each in good if each.gain > 0]
            faster = [(each, 1.0 - _per_token(each.projection, part) / _per_token(base, part)) for each in gaining]
            yield Symptom(part=part, share=share, answers=_most_useful(faster))
    share = base.memory.required / base.memory.usable
    if share >= _FULL:
        savings = [
            (each, 1.0 - each.projection.memory.required / base.memory.required) for each in good if each.projection
        ]
        yield Symptom(part=MEMORY, share=share, answers=_most_useful(savings))


def _per_token(projection: Projection | None, part: str) -> float:
    """Returns the seconds of a part for each token, so that another batch shortens nothing by itself."""
    return 0.0 if projection is None else projection.breakdown[part] / (projection.tgs * projection.step_seconds)


def _most_useful(changes: Sequence[tuple[Tried, float]]) -> tuple[tuple[Tried, float], ...]:
    useful = [pair for pair in changes if pair[1] >= 0.1]
    return tuple(sorted(useful, key=lambda pair: -pair[0].gain)[:_MOST])
