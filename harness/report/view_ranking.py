"""Tables of the order inside groups: with bootstrap intervals, by suite, and what differs inside each group."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from harness.contracts.results import Evaluation, Row
from harness.report.table import NONE, Column, Table, number, percent
from harness.score import accuracy, ranking, resample
from harness.score.ranking import GroupRanking, Range

__all__ = ["by_suite", "groups"]

Suites = Mapping[str, Collection[str]]

_COLUMNS = (
    Column("suite", numeric=False),
    Column("groups"),
    Column("rows"),
    Column("tau-b"),
    Column("90 %", numeric=False, help="bootstrap over groups"),
    Column("agreement", minor=True),
    Column("90 %", numeric=False, minor=True),
    Column("pooled", help="agreement over all pairs of all groups"),
    Column("90 %", numeric=False, minor=True),
    Column("regret"),
    Column("90 %", numeric=False),
    Column("worst regret", minor=True),
    Column("worst group", numeric=False, minor=True),
)


def by_suite(evaluation: Evaluation, rows: Sequence[Row], name: str, suites: Suites | None = None) -> Table:
    """How well a predictor orders the rows of a group: over all groups, and by suite.

    ``suites``: run ids by suite; by default as the rows themselves say.
    """
    held = accuracy.select(rows, name, "heldout")
    chosen = suites if suites is not None else _suites(evaluation, name)
    made = [_line("all", ranking.group_rankings(held, evaluation.facts))]
    made += [
        _line(suite, ranking.group_rankings([row for row in held if row.run_id in ids], evaluation.facts))
        for suite, ids in chosen.items()
    ]
    seen = [g for g in ranking.group_rankings(held, evaluation.facts) if g.stated]
    made.insert(1, _line("all, by a field seen", seen))
    note = (
        f"Held out. Ranges: {percent(resample.LEVEL, 0)} percentile bootstrap over groups ({resample.DRAWS} draws, fixed"
        f" seed); pairs within {percent(ranking.NOISE, 0)}, or within the spread that a source states, are ties. Regret:"
        " throughput lost by running the projected best. By a field seen: groups whose rows differ in a field that a"
        " projector sees, not in switches alone."
    )
    shown = tuple(line for line in made if line[1] != "0")
    return Table(title=f"{name}: order inside groups, by suite", columns=_COLUMNS, rows=shown, note=note)


def _suites(evaluation: Evaluation, name: str) -> Suites:
    found: dict[str, list[str]] = {}
    for row in accuracy.select(evaluation.rows, name, "heldout"):
        if row.suite:
            found.setdefault(row.suite, []).append(row.run_id)
    return {suite: frozenset(ids) for suite, ids in found.items()} if len(found) > 1 else {}


def _line(suite: str, found: Sequence[GroupRanking]) -> tuple[str, ...]:
    o = ranking.summary(found)
    tau = NONE if o.tau_range is None else f"{number(o.tau_range[0])} to {number(o.tau_range[1])}"
    shares = ((o.agreement, o.agreement_range), (o.pooled_agreement, o.pooled_range), (o.regret, o.regret_range))
    spans = [cell for value, span in shares for cell in (percent(value), _span(span))]
    return (suite, str(o.groups), str(o.rows), number(o.tau), tau, *spans, percent(o.worst_regret), o.worst_group)


def _span(span: Range) -> str:
    return NONE if span is None else f"{percent(span[0])} to {percent(span[1])}"


def groups(evaluation: Evaluation, rows: Sequence[Row], name: str) -> Table:
    """Every group, worst order first, with all that differs inside it."""
    columns = (
        Column("group", numeric=False),
        Column("rows"),
        Column("tau-b"),
        Column("agreement"),
        Column("regret"),
        Column("projected best", numeric=False, minor=True),
        Column("measured best", numeric=False, minor=True),
        Column("differs, seen by a projector", numeric=False),
        Column("differs, unseen", numeric=False, help="switches and versions that no recipe field holds"),
    )
    found = ranking.group_rankings(accuracy.select(rows, name, "heldout"), evaluation.facts)
    made = tuple(
        (
            *(g.group, str(g.rows), number(g.tau), percent(g.agreement, 0), percent(g.regret), g.chosen, g.best),
            ", ".join(key for key in g.differs if key not in g.unseen) or NONE,
            ", ".join(g.unseen) or NONE,
        )
        for g in sorted(found, key=lambda g: (2.0 if g.tau is None else g.tau, g.group))
    )
    return Table(title=f"{name}: what differs inside groups", columns=columns, rows=made, detail=True)
