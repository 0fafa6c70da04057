"""Tabulates history: the figures of every version, one row at every version, the rows that are broken and since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.history.changes import Change, changes, events, standing
from harness.history.series import OTHER, Series, figures
from harness.history.store import Recording
from harness.report.spec import tabled
from harness.report.table import Report, Table, signed
from harness.score.drift import MEMORY

#: The changes made between two revisions (since, at), in words; empty where they are not known.
Commits = Mapping[tuple[str, str], Sequence[str]]


def overview(found: Sequence[Series], tolerance: float, last: int, fit: str) -> Report:
    """Returns a table for each series: the figures of its ``last`` versions."""
    tables = tuple(_series(series, tolerance, last) for series in found)
    return Report(title="Accuracy over versions", lines=_lines(found, tolerance, fit), tables=tables)


def _lines(found: Sequence[Series], tolerance: float, fit: str) -> tuple[str, ...]:
    if not found:
        return ("Nothing is recorded.",)
    by_time = {version.recording.recorded: version.recording for s in found for version in s.versions}
    ordered = sorted(by_time.values(), key=lambda r: r.order)
    first, newest = ordered[0], ordered[-1]
    lines = [f"{len(ordered)} versions, from {_named(first)} to {_named(newest)}; rows: {fit}"]
    lines += [
        f"{s.title}: {len({c.run_id for c in lasting})} rows are worse by more than {_points(tolerance)} or lost; --broken"
        " names them"
        for s in found
        if (lasting := standing(changes(s, tolerance), tolerance))
    ]
    return tuple(lines)


def _series(found: Series, tolerance: float, last: int) -> Table:
    lines = zip(found.versions, figures(found.versions, tolerance), strict=True)
    shown = [{"version": version, "f": f} for version, f in lines][-last:]
    note = f"Broken: error grew by more than {_points(tolerance)} since the version before."
    if any(version.other_runs for version in found.versions[-last:]):
        note += f" {OTHER}: the suite or its measured runs are others than before."
    return tabled("versions", shown, title=found.title, note=note)


def row(found: Sequence[Series], run_id: str, tolerance: float, limit: float | None, commits: Commits) -> Report:
    """Returns one run at every version of every series that holds it, and the changes at which it broke."""
    tables, lines = [], []
    for series in found:
        changed = [c for c in changes(series, tolerance, limit) if c.run_id == run_id]
        rows = [(v, next((r for r in v.rows if r.run_id == run_id), None)) for v in series.versions]
        if any(r is not None for _, r in rows):
            at = events(changed, run_id)
            shown = [{"version": v, "row": r, "change": at.get(v.recording.recorded, ())} for v, r in rows]
            words = lambda told: ", ".join(("memory " if c.metric == MEMORY else "") + c.kind for c in told)  # noqa: E731
            tables.append(tabled("row_versions", shown, title=series.title, changes=words))
            lines += [f"{series.title}: {line}" for c in changed for line in (_sentence(c), *_commits_line(c, commits))]
    title = f"{run_id} over versions"
    return Report(title=title, lines=tuple(lines) or ("It never broke.",), tables=tuple(tables))


def broken(found: Sequence[Series], tolerance: float, limit: float | None, commits: Commits) -> Report:
    """Returns the rows that are worse now than they were, and the change at which each of them broke."""
    tables, lines = [], []
    for series in found:
        lasting = standing(changes(series, tolerance, limit), tolerance, limit)
        if lasting:
            ordered = sorted(lasting, key=lambda c: (c.at.order, -(abs(c.after or 0.0) - abs(c.before or 0.0))))
            tables.append(tabled("broken", ordered, title=series.title, how=_kind_and_reason))
        for at, since in dict.fromkeys((c.at.recorded, c.since.recorded) for c in lasting):
            same = [c for c in lasting if (c.at.recorded, c.since.recorded) == (at, since)]
            lines += [f"{series.title}: {len(same)} rows at {_named(same[0].at)}", *_commits_line(same[0], commits)]
    return Report(title="Rows that are broken", lines=tuple(lines) or ("No row is broken.",), tables=tuple(tables))


def _kind_and_reason(c: Change) -> str:
    return c.kind + (" (the measured figure changed, too)" if c.remeasured else f" ({c.reason})" if c.reason else "")


def _sentence(c: Change) -> str:
    figures = f"{c.metric} error {signed(c.before)} before, {signed(c.after)} there, {signed(c.now)} now"
    more = "; the measured figure changed, too" if c.remeasured else f"; {c.reason}" if c.reason else ""
    return f"{c.kind} at {_named(c.at)}, behind {c.since.label}: {figures}{more}"


def _commits_line(c: Change, commits: Commits) -> list[str]:
    """Returns the commits behind a change, where there are several: one alone is named beside the version already."""
    subjects = commits.get((c.since.revision, c.at.revision), ())
    return [f"  made by one of {len(subjects)} commits: " + "; ".join(subjects)] if len(subjects) > 1 else []


def _named(recording: Recording) -> str:
    subject = f", {recording.subject}" if recording.subject else ""
    changed = ", with changes" if recording.changed else ""
    return f"{recording.label} ({recording.date}{changed}{subject})"


def _points(fraction: float) -> str:
    return f"{100 * fraction:.3g} points"
