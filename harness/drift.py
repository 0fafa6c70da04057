"""Old rows against new rows: what was gained and lost, and which rows drifted. Pure functions.

A change passes when no row lost its projection and no row broke; the mean is shown, never judged, since errors that
cancel each other can make it better while a row becomes wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.results import Row

__all__ = ["BROKEN", "Drift", "Moved", "compare"]

# Growth of |error| (absolute, 0.05 = five points) above which a row counts as broken; below it a change of a
# model's constants is drift. A convention of this harness.
BROKEN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One row in both: signed errors before and after."""

    run_id: str
    predictor: str
    before: float
    after: float

    @property
    def growth(self) -> float:
        """Growth of the absolute error; negative where the row became better."""
        return abs(self.after) - abs(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """(predictor, run id) ``lost`` and ``gained``; ``moved`` rows by growth of their error, worst first."""

    lost: tuple[tuple[str, str], ...]
    gained: tuple[tuple[str, str], ...]
    moved: tuple[Moved, ...]
    broken: tuple[Moved, ...]
    before: float | None
    after: float | None

    @property
    def passed(self) -> bool:
        return not self.lost and not self.broken


def compare(old: Iterable[Row], new: Iterable[Row], fit: str = "heldout", broken: float = BROKEN) -> Drift:
    """Drift of the rows of one fit. Only predictors and runs that were asked for in both count as lost.

    ``before``/``after``: plain mean |error| over the rows that both hold.
    """
    was = {(r.predictor, r.run_id): r for r in old if r.fit == fit}
    now = {(r.predictor, r.run_id): r for r in new if r.fit == fit}
    shared = [key for key in was if key in now]
    moved = []
    for key in shared:
        before, after = was[key].error, now[key].error
        if before is not None and after is not None:
            moved.append(Moved(run_id=key[1], predictor=key[0], before=before, after=after))
    moved.sort(key=lambda m: -m.growth)
    return Drift(
        lost=tuple(key for key in shared if was[key].error is not None and now[key].error is None),
        gained=tuple(key for key in now if now[key].error is not None and (key not in was or was[key].error is None)),
        moved=tuple(moved),
        broken=tuple(m for m in moved if m.growth > broken),
        before=sum(abs(m.before) for m in moved) / len(moved) if moved else None,
        after=sum(abs(m.after) for m in moved) / len(moved) if moved else None,
    )
