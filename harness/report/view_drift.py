"""The lines and tables of a comparison with earlier results."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field, replace

from harness.contracts.estimates import publisher
from harness.contracts.results import RunFacts
from harness.report.said import said
from harness.report.spec import tabled
from harness.report.table import Report, Table, signed
from harness.score.drift import WORSE, Drift, Moved, Paired, paired
from projector.dataclass import dataclass

SHOWN = 0.001  # a move below a tenth of a point is not worth a line
MOST = 10  # causes named in the gate; the tables hold all


@dataclass(frozen=True, kw_only=True)
class Known:
    """Facts about runs beside their rows: ``facts`` by run id, and the ids of the runs ``looked`` at before anything was
    changed for them."""

    facts: Mapping[str, RunFacts] = field(default_factory=dict)
    looked: Collection[str] = ()


def added(report: Report, drift: Drift, plain: Drift | None = None, known: Known | None = None) -> Report:
    """Returns ``report`` with the drift tables in front and the verdict among its gate lines. ``plain``: the drift of
    the uncalibrated rows, which is shown and never judged: a fitted factor hides a constant that is wrong by the same
    share everywhere. ``known``: the facts by which the change is tabulated by source."""
    names = ("lost", "broken", "removed", "gained", "added", "worse")
    limits = {
        "word": "PASS" if drift.passed else "FAIL",
        "tolerance": _points(drift.tolerance),
        "least": _points(WORSE),
    }
    verdict = said("drift", {"of": drift, **limits, **{name: len(getattr(drift, name)) for name in names}})
    found = list(causes(drift))
    more = [f"FAIL and {len(found) - MOST} more rows: see the table of drift"] if len(found) > MOST else []
    lines = [*verdict, *found[:MOST], *more]
    if plain is not None and plain.before is not None:
        lines += said("drift_plain", {"of": plain, "worse": len(plain.worse), "least": _points(WORSE)})
    by_source = () if known is None else (_by_source((("held out", drift), ("as projected", plain)), known),)
    kinds = (("lost", drift.lost), ("removed", drift.removed), ("gained", drift.gained), ("new", drift.added))
    changed = [(word, *key) for word, keys in kinds for key in keys]
    tables = (*by_source, _moved(drift), tabled("changed", changed))
    return replace(report, gate=(*report.gate, *lines), tables=(*(t for t in tables if t.rows), *report.tables))


def _by_source(drifts: tuple[tuple[str, Drift | None], ...], known: Known) -> Table:
    """Returns the change on shared rows, open ones and first looks apart, and the rows that only the new code projects."""

    def source(run: str) -> str:
        return publisher(known.facts[run].source) if run in known.facts else run

    rows: list[tuple[str, Paired]] = []
    for fit, drift in drifts:
        for group, looked in (("open", False), ("first looks", True)):
            moved = [m for m in drift.moved if (m.run_id in known.looked) is looked] if drift else []
            change = paired(moved, source)
            rows += [] if change is None else [(f"{group}, {fit}", change)]
        if drift and (new := paired(drift.only_new, source)) is not None:
            rows.append((f"only new projects it, {fit}", replace(new, before=float("nan"), interval=None)))
    return tabled("by_source", rows, between=_between)


def _between(of: Paired) -> str:
    return "" if of.interval is None else " to ".join(f"{100 * x:+.2f}" for x in of.interval) + " points"


def causes(drift: Drift) -> Iterator[str]:
    """Yields one line for every row that fails."""
    return (f"FAIL {text}" for _, text in named_causes(drift))


def named_causes(drift: Drift) -> Iterator[tuple[str, str]]:
    """Yields the kind of failure (lost, removed, broken) and its words for every row that fails."""
    for predictor, run in drift.lost:
        yield "lost", f"{run}, {predictor}: projected before, not now ({drift.reasons.get((predictor, run), '')})"
    for predictor, run in () if drift.may_remove else drift.removed:
        yield "removed", f"{run}, {predictor}: projected before, no longer in the suite (--allow-removed accepts it)"
    for m in drift.broken:
        error = f"{m.metric} error {signed(m.before)} before, {signed(m.after)} now"
        allowed = f"{_points(m.growth)} worse, at most {_points(drift.tolerance)} allowed{_remeasured(m)}"
        yield "broken", f"{m.run_id}, {m.predictor}: {error}: {allowed}"


def _points(fraction: float) -> str:
    return f"{100 * fraction:.3g} points"


def _remeasured(moved: Moved) -> str:
    return " (the measured figure changed, too)" if moved.remeasured else ""


def _moved(drift: Drift) -> Table:
    def verdict(moved: Moved) -> str:
        word = "broken" if moved.growth > drift.tolerance else "worse" if moved.growth > 0 else "better"
        return word + _remeasured(moved)

    return tabled("drift", [m for m in drift.moved if abs(m.growth) > SHOWN], verdict=verdict)
