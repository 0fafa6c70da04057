"""Old rows against new rows: what was gained and lost, and which rows drifted. Pure functions.

A change passes when no row lost its projection, none was taken out of a suite and none broke; the mean is shown, never
judged, since errors that cancel each other can make it better while a row becomes wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.contracts.results import BASELINE, Row

__all__ = ["BROKEN", "MEMORY", "THROUGHPUT", "WORSE", "Drift", "Moved", "compare"]

# Growth of |error| (absolute, 0.05 = five points) above which a row counts as broken, where the user states no other;
# below it a change of a model's constants is drift, and above WORSE it is worth a word. Conventions of this harness.
BROKEN = 0.05
WORSE = 0.01

THROUGHPUT, MEMORY = "TGS", "memory"

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One row in both: signed errors before and after. ``metric``: of throughput or of memory.

    ``remeasured``: the measured figure itself changed, so that the growth is not the projector's alone.
    """

    run_id: str
    predictor: str
    before: float
    after: float
    metric: str = THROUGHPUT
    remeasured: bool = False

    @property
    def growth(self) -> float:
        """Growth of the absolute error; negative where the row became better."""
        return abs(self.after) - abs(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """(predictor, run id): ``lost`` their projection (``reasons`` says why), ``removed`` from a suite that ran both
    times, ``gained`` a projection, ``added`` to a suite. ``moved``: rows by growth of their error, worst first;
    ``worse`` and ``broken`` of them by more than :data:`WORSE` and ``tolerance``.

    ``before``/``after``: plain mean |error| of throughput over the rows that both hold.
    """

    lost: tuple[Key, ...]
    gained: tuple[Key, ...]
    moved: tuple[Moved, ...]
    broken: tuple[Moved, ...]
    before: float | None
    after: float | None
    removed: tuple[Key, ...] = ()
    added: tuple[Key, ...] = ()
    reasons: Mapping[Key, str] = field(default_factory=dict)
    tolerance: float = BROKEN
    fit: str = "heldout"
    may_remove: bool = False

    @property
    def worse(self) -> tuple[Moved, ...]:
        return tuple(m for m in self.moved if m.growth > WORSE)

    @property
    def passed(self) -> bool:
        return not self.lost and not self.broken and (self.may_remove or not self.removed)


def compare(
    old: Iterable[Row],
    new: Iterable[Row],
    fit: str = "heldout",
    broken: float = BROKEN,
    *,
    may_remove: bool = False,
) -> Drift:
    """Drift of the rows of one fit; a run that several suites select counts once.

    Only predictors and suites that were asked for both times count as lost or removed, and never the baseline: its
    constant follows whatever rows there are. ``broken``: growth of the error
    beyond which a row fails; ``may_remove``: removed rows are told, and pass.
    """
    earlier, later = ([r for r in rows if r.fit == fit and r.predictor != BASELINE] for rows in (old, new))
    was, now = _once(earlier), _once(later)
    shared = [key for key in was if key in now]
    moved = sorted((m for key in shared for m in _moves(was[key], now[key])), key=lambda m: -m.growth)
    speed = [m for m in moved if m.metric == THROUGHPUT]
    lost = tuple(key for key in shared if was[key].error is not None and now[key].error is None)
    return Drift(
        lost=lost,
        gained=tuple(key for key in shared if was[key].error is None and now[key].error is not None),
        moved=tuple(moved),
        broken=tuple(m for m in moved if m.growth > broken),
        before=sum(abs(m.before) for m in speed) / len(speed) if speed else None,
        after=sum(abs(m.after) for m in speed) / len(speed) if speed else None,
        removed=_removed(earlier, later, now),
        added=tuple(key for key in now if key not in was and now[key].error is not None),
        reasons={key: _why(now[key]) for key in lost},
        tolerance=broken,
        fit=fit,
        may_remove=may_remove,
    )


def _once(rows: Iterable[Row]) -> dict[Key, Row]:
    kept: dict[Key, Row] = {}
    for row in rows:
        kept.setdefault((row.predictor, row.run_id), row)
    return kept


def _moves(was: Row, now: Row) -> Iterable[Moved]:
    """The row's change in throughput error and in memory error, where both versions have one."""
    pairs = (
        (THROUGHPUT, was.error, now.error, was.measured_tgs, now.measured_tgs),
        (MEMORY, was.memory_error, now.memory_error, was.measured_memory_gib, now.measured_memory_gib),
    )
    for metric, before, after, measured, again in pairs:
        if before is not None and after is not None:
            yield Moved(
                run_id=was.run_id,
                predictor=was.predictor,
                before=before,
                after=after,
                metric=metric,
                remeasured=measured != again,
            )


def _removed(earlier: Iterable[Row], later: Iterable[Row], now: Mapping[Key, Row]) -> tuple[Key, ...]:
    asked = {(r.suite, r.predictor) for r in later}
    gone = (
        (r.predictor, r.run_id)
        for r in earlier
        if r.error is not None and (r.suite, r.predictor) in asked and (r.predictor, r.run_id) not in now
    )
    return tuple(dict.fromkeys(gone))


def _why(row: Row) -> str:
    if row.measured_tgs is None:
        return "nothing measured"
    return f"{row.status}: {row.reason}" if row.reason else row.status
