"""Tables of the order inside groups: by group, with bootstrap intervals by suite, and what differs inside each group."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.report.spec import few, metric, percent0
from harness.report.table import NONE, Table, cells, columns, figure, listed, number, percent, text
from harness.score import ranking, resample
from harness.score.figures import Figures
from harness.score.ranking import GroupRanking

Suites = Mapping[str, Collection[str]]

_BY_SUITE = tuple(
    metric(name)
    for name in (
        *("groups", "ranked", "tau", "tau_range", "agreement?", "agreement_range?", "pooled", "pooled_range?"),
        *("regret", "regret_range", "worst_regret?", "worst_group?", "best_place?", "top3?"),
    )
)


def of_predictor(evaluation: Evaluation, name: str) -> list[Table]:
    """The groups, worst order first; all of them and by suite; and what differs inside."""
    of = Figures(frame.part(evaluation.once, predictor=name), evaluation.once)
    if not of.groups:
        return []
    return [_inside(of, name), by_suite(evaluation, name), groups(of, name)]


def _inside(of: Figures, name: str) -> Table:
    made = (
        text("group", "group"),
        figure("rows", "rows"),
        figure("missing", "missing", help="measured rows of the group without a projection", minor=1),
        figure("tau-b", "tau", number),
        figure("agreement", "agreement", percent0),
        figure("regret", "regret", percent, "throughput lost by running the projected best"),
        figure("place", "place", _place, "of the measured best in the projected order", minor=1),
        figure("top 3", "recall", percent0, "of the projected first three, those among the measured", minor=1),
        text("what differs", lambda g: few(g.differs)),
    )
    o = of.order
    worst = f" (worst {percent(o.worst_regret)}: {o.worst_group})" if o.worst_group else ""
    note = (
        f"{o.groups} groups, {o.rows} rows: mean tau-b {number(o.tau)}, pairwise agreement"
        f" {percent(o.agreement)} (pooled {percent(o.pooled_agreement)}), top-1 regret {percent(o.regret)}{worst}. Held out;"
        f" pairs within {percent(ranking.NOISE, 0)} of each other are ties."
    )
    return listed(f"{name}: ranking inside groups", sorted(of.groups, key=_worst_first), made, note)


def _place(value: float | None) -> str:
    return number(value, 1)


def _worst_first(group: GroupRanking) -> tuple[float, str]:
    return (2.0 if group.tau is None else group.tau, group.group)


def by_suite(evaluation: Evaluation, name: str, suites: Suites | None = None) -> Table:
    """How well a predictor orders the rows of a group: over all groups, and by suite.

    ``suites``: run ids by suite; by default as the rows themselves say.
    """
    held = frame.part(evaluation.once, predictor=name, fit="heldout")
    seen = {g.group for g in ranking.group_rankings(held) if g.stated}
    chosen = suites if suites is not None else _suites(evaluation, name)
    lines = {"all": held, "all, by a field seen": held[held["group"].isin(seen)]}
    lines |= {suite: held[held["run_id"].isin(list(ids))] for suite, ids in chosen.items()}
    made = [(suite, *cells(_BY_SUITE, Figures(rows, rows))) for suite, rows in lines.items()]
    note = (
        f"Held out. Ranges: {percent(resample.LEVEL, 0)} percentile bootstrap over groups ({resample.DRAWS} draws, fixed"
        f" seed); pairs within {percent(ranking.NOISE, 0)}, or within the spread that a source states, are ties. Regret:"
        " throughput lost by running the projected best. By a field seen: groups whose rows differ in a field that a"
        " projector sees, not in switches alone."
    )
    shown = tuple(line for line in made if line[1] != "0")
    titles = (text("suite", str).column, *columns(_BY_SUITE))
    return Table(title=f"{name}: order inside groups, by suite", columns=titles, rows=shown, note=note)


def _suites(evaluation: Evaluation, name: str) -> Suites:
    rows = frame.part(evaluation.frame, predictor=name, fit="heldout")
    found = {str(suite): set(part["run_id"]) for (suite,), part in frame.parts(rows, ["suite"]) if suite}
    return found if len(found) > 1 else {}


def groups(of: Figures, name: str) -> Table:
    """Every group, worst order first, with all that differs inside it."""
    made = (
        text("group", "group"),
        figure("rows", "rows"),
        figure("tau-b", "tau", number),
        figure("agreement", "agreement", percent0),
        figure("regret", "regret", percent),
        text("projected best", "chosen", minor=1),
        text("measured best", "best", minor=1),
        text("differs, seen by a projector", lambda g: ", ".join(k for k in g.differs if k not in g.unseen) or NONE),
        text("differs, unseen", lambda g: ", ".join(g.unseen) or NONE, help=_UNSEEN),
    )
    found = sorted(of.groups, key=_worst_first)
    return listed(f"{name}: what differs inside groups", found, made, detail=True)


_UNSEEN = "switches and versions that no recipe field holds"
