"""Finds the version at which a row broke: its error grew by more than a tolerance, passed a limit, or went with the
projection. Growth counts from the best the row has been since it last changed, so that a row which becomes worse in
small steps breaks at the step that passes the tolerance. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.contracts.results import BASELINE, Row
from harness.history.series import Series, Version
from harness.history.store import Recording
from harness.score.drift import BROKEN, MEMORY, THROUGHPUT
from projector.dataclass import dataclass

BROKE, MENDED, LOST, GAINED, REMOVED, OVER = "broke", "mended", "lost", "gained", "removed", "over the limit"
WORSE = (BROKE, LOST, REMOVED, OVER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row at the version where it changed. Errors are signed; None where there was no projection. ``since``: the
    version before, so that the change was made behind ``since`` and no later than ``at``; ``before``: the best error up
    to there, ``now``: that of the last version. ``remeasured``: the measured figure itself is another."""

    run_id: str
    suite: str
    predictor: str
    metric: str
    kind: str
    before: float | None
    after: float | None
    now: float | None
    since: Recording
    at: Recording
    remeasured: bool = False
    reason: str = ""


@dataclass(slots=True)
class _State:
    """One row and metric while the versions are read in order."""

    best: float | None = None
    last: float | None = None
    row: Row | None = None
    since: Recording | None = None


def changes(found: Series, tolerance: float = BROKEN, limit: float | None = None) -> tuple[Change, ...]:
    """Returns every change of every row of a series, versions in order. ``limit``: |error| whose crossing is a change."""
    if found.predictor == BASELINE:
        return ()  # the baseline's constant follows whatever rows there are
    states: dict[tuple[str, str], _State] = {}
    changed: list[Change] = []
    for version in found.versions:
        changed += _changes_at(found, version, states, tolerance, limit)
    ends = {key: state.last for key, state in states.items()}
    return tuple(replace(change, now=ends[change.run_id, change.metric]) for change in changed)


def standing(found: Sequence[Change], tolerance: float = BROKEN, limit: float | None = None) -> tuple[Change, ...]:
    """Returns the changes for the worse that still harm the last version, of each row the latest of its kind."""
    latest: dict[tuple[str, str, str], Change] = {}
    for change in found:
        key = (change.run_id, change.metric, change.kind)
        latest.pop(key, None)
        if change.kind in WORSE and _harmed(change, tolerance, limit):
            latest[key] = change
    return tuple(latest.values())


def _harmed(change: Change, tolerance: float, limit: float | None) -> bool:
    if change.now is None or change.kind in (LOST, REMOVED):
        return change.now is None
    if change.kind == OVER:
        return limit is not None and abs(change.now) > limit
    return abs(change.now) - abs(change.before or 0.0) > tolerance


def events(found: Sequence[Change], run_id: str) -> dict[str, list[Change]]:
    """Returns the changes of one run by the time at which their version was recorded."""
    by_time: dict[str, list[Change]] = {}
    for change in found:
        if change.run_id == run_id:
            by_time.setdefault(change.at.recorded, []).append(change)
    return by_time


def _changes_at(
    found: Series, version: Version, states: dict[tuple[str, str], _State], tolerance: float, limit: float | None
) -> Iterator[Change]:
    rows = {row.run_id: row for row in version.rows}
    for run_id in dict.fromkeys([*rows, *(name for name, _ in states)]):
        row = rows.get(run_id)
        for metric in (THROUGHPUT, MEMORY):
            state = states.setdefault((run_id, metric), _State())
            error = None if row is None else row.error if metric == THROUGHPUT else row.memory_error
            kind = _kind(state, row, error, tolerance, limit)
            if kind and state.since is not None:
                yield Change(
                    run_id=run_id,
                    suite=found.suite,
                    predictor=found.predictor,
                    metric=metric,
                    kind=kind,
                    before=state.best if kind in (BROKE, MENDED) else state.last,
                    after=error,
                    now=None,
                    since=state.since,
                    at=version.recording,
                    remeasured=_remeasured(state.row, row, metric),
                    reason=_reason(row) if kind == LOST else "",
                )
            if kind or error is None or state.best is None or abs(error) < abs(state.best):
                state.best = error
            state.last, state.row, state.since = error, row or state.row, version.recording


def _kind(state: _State, row: Row | None, error: float | None, tolerance: float, limit: float | None) -> str:
    """Returns the kind of change of a row between the last version and this one; empty where it did not change."""
    if error is None or state.last is None or state.best is None:
        if state.last is not None and error is None:
            return REMOVED if row is None else LOST
        return GAINED if error is not None and state.row is not None else ""
    growth = abs(error) - abs(state.best)
    if growth > tolerance:
        return BROKE
    if growth < -tolerance:
        return MENDED
    return OVER if limit is not None and abs(state.last) <= limit < abs(error) else ""


def _remeasured(was: Row | None, now: Row | None, metric: str) -> bool:
    if was is None or now is None:
        return False
    if metric == THROUGHPUT:
        return was.measured_tgs != now.measured_tgs
    return was.measured_memory_gib != now.measured_memory_gib


def _reason(row: Row | None) -> str:
    if row is None:
        return ""
    return "nothing measured" if row.measured_tgs is None else f"{row.status}: {row.reason}".rstrip(": ")
