"""History as tables: the figures of every version, one row at every version, the rows that are broken and since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.history.changes import Change, changes, events, standing
from harness.history.series import OTHER, Series, figures
from harness.history.store import Recording
from harness.report.spec import tabled
from harness.report.table import Report, Table, signed
from harness.score.drift import MEMORY

#: (since, at) by the revisions of both → the changes made between them, in words; empty where they are not known.
Commits = Mapping[tuple[str, str], Sequence[str]]


def overview(found: Sequence[Series], tolerance: float, last: int, fit: str) -> Report:
    """A table a series: the figures of its ``last`` versions."""
    tables = tuple(_series(each, tolerance, last) for each in found)
    return Report(title="Accuracy over versions", lines=_lines(found, tolerance, fit), tables=tables)


def _lines(found: Sequence[Series], tolerance: float, fit: str) -> tuple[str, ...]:
    if not found:
        return ("Nothing is recorded.",)
    kept = {each.recording.recorded: each.recording for s in found for each in s.versions}
    ordered = sorted(kept.values(), key=lambda r: r.order)
    first, newest = ordered[0], ordered[-1]
    told = [f"{len(ordered)} versions, from {_named(first)} to {_named(newest)}; rows: {fit}"]
    told += [
        f"{s.title}: {len({c.run_id for c in lasting})} rows are worse by more than {_points(tolerance)} or lost; --broken"
        " names them"
        for s in found
        if (lasting := standing(changes(s, tolerance), tolerance))
    ]
    return tuple(told)


def _series(found: Series, tolerance: float, last: int) -> Table:
    lines = zip(found.versions, figures(found.versions, tolerance), strict=True)
    shown = [{"version": version, "f": f} for version, f in lines][-last:]
    note = f"Broken: error grew by more than {_points(tolerance)} since the version before."
    if any(version.other_runs for version in found.versions[-last:]):
        note += f" {OTHER}: the suite or its measured runs are others than before."
    return tabled("versions", shown, title=found.title, note=note)


def row(found: Sequence[Series], run_id: str, tolerance: float, limit: float | None, commits: Commits) -> Report:
    """One run at every version of every series that holds it, and the changes at which it broke."""
    tables, lines = [], []
    for each in found:
        told = [c for c in changes(each, tolerance, limit) if c.run_id == run_id]
        rows = [(v, next((r for r in v.rows if r.run_id == run_id), None)) for v in each.versions]
        if any(r is not None for _, r in rows):
            at = events(told, run_id)
            shown = [{"version": v, "row": r, "change": at.get(v.recording.recorded, ())} for v, r in rows]
            tables.append(tabled("row_versions", shown, title=each.title, changes=_changes))
            lines += [f"{each.title}: {line}" for c in told for line in (_sentence(c), *_made(c, commits))]
    title = f"{run_id} over versions"
    return Report(title=title, lines=tuple(lines) or ("It never broke.",), tables=tuple(tables))


def broken(found: Sequence[Series], tolerance: float, limit: float | None, commits: Commits) -> Report:
    """The rows that are worse now than they were, and the change at which each of them broke."""
    tables, lines = [], []
    for each in found:
        lasting = standing(changes(each, tolerance, limit), tolerance, limit)
        if lasting:
            ordered = sorted(lasting, key=lambda c: (c.at.order, -(abs(c.after or 0.0) - abs(c.before or 0.0))))
            tables.append(tabled("broken", ordered, title=each.title, how=_how))
        for at, since in dict.fromkeys((c.at.recorded, c.since.recorded) for c in lasting):
            here = [c for c in lasting if (c.at.recorded, c.since.recorded) == (at, since)]
            lines += [f"{each.title}: {len(here)} rows at {_named(here[0].at)}", *_made(here[0], commits)]
    return Report(title="Rows that are broken", lines=tuple(lines) or ("No row is broken.",), tables=tuple(tables))


def _changes(told: Sequence[Change]) -> str:
    return ", ".join(("memory " if c.metric == MEMORY else "") + c.kind for c in told)


def _how(c: Change) -> str:
    return c.kind + (" (the measured figure changed, too)" if c.remeasured else f" ({c.reason})" if c.reason else "")


def _sentence(c: Change) -> str:
    figures = f"{c.metric} error {signed(c.before)} before, {signed(c.after)} there, {signed(c.now)} now"
    more = "; the measured figure changed, too" if c.remeasured else f"; {c.reason}" if c.reason else ""
    return f"{c.kind} at {_named(c.at)}, behind {c.since.label}: {figures}{more}"


def _made(c: Change, commits: Commits) -> list[str]:
    """The commits behind a change, where there are several: with one, its subject stands beside the version already."""
    made = commits.get((c.since.revision, c.at.revision), ())
    return [f"  made by one of {len(made)} commits: " + "; ".join(made)] if len(made) > 1 else []


def _named(made: Recording) -> str:
    subject = f", {made.subject}" if made.subject else ""
    changed = ", with changes" if made.changed else ""
    return f"{made.label} ({made.date}{changed}{subject})"


def _points(fraction: float) -> str:
    return f"{100 * fraction:.3g} points"
