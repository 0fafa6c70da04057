"""Tabulates the order inside groups: by group, with bootstrap intervals by suite, and the keys that differ inside each
group."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.report.spec import SPECS, table, tabled
from harness.report.table import Table, number, percent
from harness.score import ranking, resample
from harness.score.figures import Figures
from harness.score.ranking import GroupRanking


def of_predictor(evaluation: Evaluation, name: str) -> list[Table]:
    """Returns the tables of groups, worst order first; of all groups and by suite; and of the keys that differ inside."""
    of = Figures.of(evaluation.once, name)
    if not of.groups:
        return []
    ordered = sorted(of.groups, key=lambda group: (2.0 if group.tau is None else group.tau, group.group))
    seen = lambda group: [key for key in group.differs if key not in group.unseen]  # noqa: E731
    return [_inside(of, ordered, name), by_suite(evaluation, name), tabled("groups", ordered, name=name, seen=seen)]


def _inside(of: Figures, ordered: list[GroupRanking], name: str) -> Table:
    order = of.order
    figures = {"agreement": order.agreement, "pooled": order.pooled_agreement, "regret": order.regret}
    worst = f" (worst {percent(order.worst_regret)}: {order.worst_group})" if order.worst_group else ""
    words = {key: percent(value) for key, value in figures.items()}
    noise = percent(ranking.NOISE, 0)
    return tabled("ranking", ordered, name=name, o=order, tau=number(order.tau), worst=worst, noise=noise, **words)


def by_suite(evaluation: Evaluation, name: str, suites: Mapping[str, Collection[str]] | None = None) -> Table:
    """Tabulates how well a predictor orders the rows of a group: over all groups, and by suite. ``suites``: run ids by
    suite; by default as the rows themselves say."""
    held = frame.part(evaluation.once, predictor=name, fit="heldout")
    seen = {g.group for g in ranking.group_rankings(held) if g.stated}
    if suites is None:
        every = frame.part(evaluation.frame, predictor=name, fit="heldout")
        suites = {str(suite): set(part["run_id"]) for (suite,), part in frame.parts(every, ["suite"]) if suite}
        suites = suites if len(suites) > 1 else {}
    lines = {"all": held, "all, by a field seen": held[held["group"].isin(seen)]}
    lines |= {suite: held[held["run_id"].isin(list(ids))] for suite, ids in suites.items()}
    groups = [((suite,), rows) for suite, rows in lines.items() if ranking.group_rankings(rows)]
    words = {"level": percent(resample.LEVEL, 0), "draws": resample.DRAWS, "noise": percent(ranking.NOISE, 0)}
    return table(held, SPECS["suites"], name, groups, **words)
