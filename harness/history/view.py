"""History as tables: the figures of every version, one row at every version, the rows that are broken and since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.contracts.results import Row
from harness.history.changes import Change, changes, events, standing
from harness.history.recording import Recording
from harness.history.series import Figures, Series, Version, figures
from harness.report.table import NONE, Column, Report, Table, number, percent, signed
from harness.score.drift import MEMORY

__all__ = ["broken", "overview", "row"]

#: (since, at) by the revisions of both → the changes made between them, in words; empty where they are not known.
Commits = Mapping[tuple[str, str], Sequence[str]]

_FIGURES = (
    Column("version", numeric=False),
    Column("date", numeric=False, minor=True),
    Column("rows", minor=True),
    Column("coverage"),
    Column("macro", help="mean |error|, every (model family × GPU × framework) cell weighing the same"),
    Column("plain", help="mean |error|, every row weighing the same"),
    Column("median"),
    Column("tau-b"),
    Column("inside", help="measurements inside their 90 % interval"),
    Column("moved", help="rows whose error is another by a tenth of a point or more", minor=True),
    Column("broken"),
    Column("lost"),
)
_OTHER = "*"


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
    rows = tuple(_figures(version, f) for version, f in lines)[-last:]
    notes = [f"Broken: error grew by more than {_points(tolerance)} since the version before."]
    if any(version.other_runs for version in found.versions[-last:]):
        notes.append(f"{_OTHER}: the suite or its measured runs are others than before.")
    return Table(title=found.title, columns=_FIGURES, rows=rows, note=" ".join(notes))


def _figures(version: Version, f: Figures) -> tuple[str, ...]:
    counts = (f.moved, f.broken, f.lost)
    return (
        version.recording.label + (_OTHER if version.other_runs else ""),
        _date(version.recording),
        str(f.compared),
        percent(f.coverage),
        percent(f.macro),
        percent(f.plain),
        percent(f.median),
        number(f.tau),
        percent(f.inside),
        *(str(n) if n else NONE for n in counts),
    )


def row(found: Sequence[Series], run_id: str, tolerance: float, limit: float | None, commits: Commits) -> Report:
    """One run at every version of every series that holds it, and the changes at which it broke."""
    tables, lines = [], []
    for each in found:
        told = [c for c in changes(each, tolerance, limit) if c.run_id == run_id]
        rows = [(v, next((r for r in v.rows if r.run_id == run_id), None)) for v in each.versions]
        if any(r is not None for _, r in rows):
            tables.append(_row(each, rows, events(told, run_id)))
            lines += [f"{each.title}: {line}" for c in told for line in (_sentence(c), *_made(c, commits))]
    title = f"{run_id} over versions"
    return Report(title=title, lines=tuple(lines) or ("It never broke.",), tables=tuple(tables))


def _row(found: Series, rows: Sequence[tuple[Version, Row | None]], told: Mapping[str, Sequence[Change]]) -> Table:
    columns = (
        Column("version", numeric=False),
        Column("date", numeric=False, minor=True),
        Column("measured", help="tokens/s/GPU"),
        Column("projected", help="tokens/s/GPU"),
        Column("error"),
        Column("inside", numeric=False, help="whether the measurement is inside the 90 % interval"),
        Column("memory error", minor=True),
        Column("change", numeric=False),
    )
    made = tuple((*_cells(v, r), _kinds(told.get(v.recording.recorded, ()))) for v, r in rows)
    return Table(title=found.title, columns=columns, rows=made)


def _cells(version: Version, found: Row | None) -> tuple[str, ...]:
    head = (version.recording.label, _date(version.recording))
    if found is None:
        return (*head, *(NONE,) * 5)
    within = found.inside
    return (
        *head,
        number(found.measured_tgs, 0),
        number(found.projected_tgs, 0),
        signed(found.error),
        NONE if within is None else "yes" if within else "no",
        signed(found.memory_error),
    )


def _kinds(told: Sequence[Change]) -> str:
    return ", ".join(("memory " if c.metric == MEMORY else "") + c.kind for c in told)


def broken(found: Sequence[Series], tolerance: float, limit: float | None, commits: Commits) -> Report:
    """The rows that are worse now than they were, and the change at which each of them broke."""
    columns = (
        Column("row", numeric=False),
        Column("error of", numeric=False, minor=True),
        Column("before"),
        Column("after"),
        Column("now"),
        Column("broke at", numeric=False),
        Column("since", numeric=False, minor=True),
        Column("how", numeric=False),
    )
    tables, lines = [], []
    for each in found:
        lasting = standing(changes(each, tolerance, limit), tolerance, limit)
        rows = tuple(_broken(c) for c in sorted(lasting, key=lambda c: (c.at.order, -_growth(c))))
        if rows:
            tables.append(Table(title=each.title, columns=columns, rows=rows))
        for at, since in dict.fromkeys((c.at.recorded, c.since.recorded) for c in lasting):
            here = [c for c in lasting if (c.at.recorded, c.since.recorded) == (at, since)]
            lines += [f"{each.title}: {len(here)} rows at {_named(here[0].at)}", *_made(here[0], commits)]
    return Report(title="Rows that are broken", lines=tuple(lines) or ("No row is broken.",), tables=tuple(tables))


def _broken(c: Change) -> tuple[str, ...]:
    how = c.kind + (" (the measured figure changed, too)" if c.remeasured else f" ({c.reason})" if c.reason else "")
    return (c.run_id, c.metric, signed(c.before), signed(c.after), signed(c.now), c.at.label, c.since.label, how)


def _growth(c: Change) -> float:
    return abs(c.after or 0.0) - abs(c.before or 0.0)


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
    return f"{made.label} ({_date(made)}{changed}{subject})"


def _date(made: Recording) -> str:
    return (made.committed or made.recorded)[:10]


def _points(fraction: float) -> str:
    return f"{100 * fraction:.3g} points"
