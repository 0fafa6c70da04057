"""The reader's view: from rows to the tables of a report, headline first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.contracts.results import BASELINE, Evaluation, Row
from harness.report import view_causes, view_detail, view_intervals, view_modes, view_peers, view_ranking
from harness.report.table import NONE, Column, Report, Table, number, percent, signed
from harness.score import accuracy, ranking
from harness.score.accuracy import Summary
from harness.score.gate import Check

__all__ = ["build", "by_gpu", "by_model", "fits_of", "headline", "orders", "sentences"]

NOT_STATED = "not stated"

HEADLINE = (
    Column("predictor", numeric=False),
    Column("rows", help="runs selected", minor=True),
    Column("incomplete", help="the source does not state a whole configuration", minor=True),
    Column("compared", help="rows with a projected and a measured throughput"),
    Column("coverage", help="compared / measured and complete"),
    Column("uncalibrated", help="macro MAPE of TGS with nothing fitted"),
    Column("calibrated", help="macro MAPE with the law of calibration fitted on all rows", minor=True),
    Column("held out", help="macro MAPE, each row by a law and parameters that saw no row of its model family"),
    Column("plain", help="held-out MAPE, every row weighing the same"),
    Column("bias", help="held-out macro mean of the signed error", minor=True),
    Column("median", minor=True),
    Column("p90", help="90 % of the rows are off by no more", minor=True),
    Column("worst"),
    Column("worst row", numeric=False, minor=True),
)


def build(evaluation: Evaluation, checks: Sequence[Check] = (), title: str = "Projection accuracy") -> Report:
    """The report of an evaluation. Runs that several suites select count once."""
    rows = evaluation.unique_rows
    names = list(dict.fromkeys(r.predictor for r in rows))
    ours = [n for n in names if n != BASELINE] or names
    tables = [headline(evaluation, rows, names), *view_peers.same_rows(evaluation, rows, names)]
    tables.append(orders(evaluation, rows, names))
    for name in ours:
        tables += [
            by_gpu(evaluation, rows, name),
            by_model(evaluation, rows, name),
            *_ranking(evaluation, rows, name),
            view_ranking.by_suite(evaluation, rows, name),
            view_ranking.groups(evaluation, rows, name),
            view_intervals.of_predictor(rows, name),
        ]
        repeats = name == view_modes.MEASURED and view_modes.SIMULATED in ours
        tables += view_detail.of_predictor(evaluation, rows, name, repeats=repeats)
        tables += _causes(evaluation, rows, name)
    tables += view_modes.side_by_side(rows)
    tables += view_detail.of_rows(rows, ours)
    return Report(
        title=title,
        lines=sentences(evaluation),
        tables=tuple(t for t in tables if t.rows),
        gate=tuple(str(c) for c in checks),
    )


def _causes(evaluation: Evaluation, rows: Sequence[Row], name: str) -> list[Table]:
    """For the files; the terminal has enough to show."""
    found = view_causes.of_predictor(evaluation, rows, name)
    return [replace(t, title=f"{name}: {t.title[0].lower()}{t.title[1:]}", detail=True) for t in found]


def fits_of(evaluation: Evaluation, rows: Sequence[Row], predictor: str) -> tuple[Summary, Summary, Summary]:
    """Summaries of one predictor: uncalibrated, calibrated, held out."""
    uncalibrated, calibrated, heldout = (
        accuracy.summarise(accuracy.select(rows, predictor, fit), evaluation.facts)
        for fit in ("uncalibrated", "calibrated", "heldout")
    )
    return uncalibrated, calibrated, heldout


def sentences(evaluation: Evaluation) -> tuple[str, ...]:
    """The headline of every predictor in one sentence each."""
    rows = evaluation.unique_rows
    return tuple(_sentence(evaluation, rows, name) for name in dict.fromkeys(r.predictor for r in rows))


def _sentence(evaluation: Evaluation, rows: Sequence[Row], name: str) -> str:
    _, _, held = fits_of(evaluation, rows, name)
    groups = ranking.group_rankings(accuracy.select(rows, name, "heldout"), evaluation.facts)
    order = ranking.summary(groups)
    said = (
        f"{name}: held-out TGS error {percent(held.macro_mape)} macro ({percent(held.mape)} plain) over {held.compared}"
        f" rows, coverage {percent(held.coverage)}"
    )
    if order.tau is not None:
        said += f", Kendall tau-b {number(order.tau)} over {order.groups} groups"
    return said


def headline(evaluation: Evaluation, rows: Sequence[Row], names: Sequence[str]) -> Table:
    made = []
    for name in names:
        u, c, h = fits_of(evaluation, rows, name)
        counts = (str(h.rows), str(h.incomplete), str(h.compared), percent(h.coverage))
        errors = (percent(u.macro_mape), percent(c.macro_mape), percent(h.macro_mape), percent(h.mape))
        spread = (signed(h.macro_bias), percent(h.median), percent(h.p90), signed(h.worst), h.worst_id)
        made.append((name, *counts, *errors, *spread))
    return Table(
        title="Throughput error",
        columns=HEADLINE,
        rows=tuple(made),
        note=(
            "Mean |projected / measured − 1| of tokens/s/GPU; macro: every (model family × GPU × framework) cell weighs"
            " the same, plain: every row does. Coverage: compared rows over those with a measured throughput and a whole"
            " configuration. Calibrated: a few parameters per GPU and framework. Held out: each row by a law and parameters"
            " that saw no row of its model family; plain to worst are held out."
        ),
    )


def orders(evaluation: Evaluation, rows: Sequence[Row], names: Sequence[str]) -> Table:
    """One line a predictor: how well it orders the configurations of a group."""
    columns = (
        Column("predictor", numeric=False),
        Column("groups"),
        Column("rows", minor=True),
        Column("tau-b"),
        Column("tau-b seen", help="tau-b over groups whose rows differ in a field that a projector sees"),
        Column("agreement"),
        Column("pooled", help="agreement over all pairs of all groups"),
        Column("regret", help="mean throughput lost by running the projected best"),
        Column("worst regret", minor=True),
        Column("worst group", numeric=False, minor=True),
    )
    made = []
    for name in names:
        groups = ranking.group_rankings(accuracy.select(rows, name, "heldout"), evaluation.facts)
        o, seen = ranking.summary(groups), ranking.summary([g for g in groups if g.stated])
        taus = (number(o.tau), f"{number(seen.tau)} ({seen.groups})")
        shares = (percent(o.agreement), percent(o.pooled_agreement), percent(o.regret), percent(o.worst_regret))
        made.append((name, str(o.groups), str(o.rows), *taus, *shares, o.worst_group))
    ranked = tuple(row for row in made if row[1] != "0")
    return Table(title="Ranking inside groups, mean over groups", columns=columns, rows=ranked, note=_ORDERS)


_ORDERS = (
    "A group holds runs of one job that differ in a few switches. Tau-b: Kendall's, 1 where the projection orders a group"
    " as measured. Seen: only groups (their number) whose rows differ in a field that a projector sees. Agreement: share of"
    " pairs in the right order; pooled: over all pairs at once. Regret: throughput lost by running the projected best."
)


def by_gpu(evaluation: Evaluation, rows: Sequence[Row], name: str) -> Table:
    columns = (
        Column("GPU", numeric=False),
        Column("compared"),
        Column("coverage"),
        Column("uncalibrated"),
        Column("calibrated", minor=True),
        Column("held out"),
        Column("plain", minor=True),
        Column("bias", minor=True),
        Column("worst"),
        Column("baseline", help="held-out macro MAPE of constant MFU on the same rows"),
        Column("beaten", numeric=False),
        Column("worst row", numeric=False, minor=True),
    )
    made = []
    for gpu, members in accuracy.by(rows, lambda r: r.gpu).items():
        u, c, h = fits_of(evaluation, members, name)
        base = _baseline(evaluation, members, name)
        errors = (percent(u.macro_mape), percent(c.macro_mape), percent(h.macro_mape), percent(h.mape))
        beats = NONE if base is None or h.macro_mape is None else ("yes" if h.macro_mape < base else "no")
        tail = (signed(h.macro_bias), signed(h.worst), percent(base), beats, h.worst_id)
        made.append((gpu or NOT_STATED, str(h.compared), percent(h.coverage), *errors, *tail))
    note = "Macro MAPE; baseline: constant MFU, held out, on the same rows. Worst: held out, one row. "
    shown, idle = _compared(made)
    return Table(title=f"{name}: by GPU", columns=columns, rows=shown, note=(note + idle).strip())


def _baseline(evaluation: Evaluation, rows: Sequence[Row], name: str) -> float | None:
    """Held-out macro MAPE of the baseline on the rows that ``name`` projects: coverage can flatter neither."""
    ids = {r.run_id for r in accuracy.comparable(accuracy.select(rows, name, "heldout"))}
    mine = [r for r in accuracy.select(rows, BASELINE, "heldout") if r.run_id in ids]
    return accuracy.summarise(mine, evaluation.facts).macro_mape


def by_model(evaluation: Evaluation, rows: Sequence[Row], name: str) -> Table:
    columns = (
        Column("model", numeric=False),
        Column("GPUs", numeric=False, minor=True),
        Column("compared"),
        Column("coverage"),
        Column("uncalibrated"),
        Column("held out"),
        Column("bias", minor=True),
        Column("worst"),
        Column("worst row", numeric=False, minor=True),
    )
    made = []
    for model, members in accuracy.by(rows, lambda r: r.model).items():
        u, _, h = fits_of(evaluation, members, name)
        gpus = _few(sorted({r.gpu for r in members} - {""}), 3) or NONE
        errors = (percent(u.macro_mape), percent(h.macro_mape), signed(h.macro_bias), signed(h.worst), h.worst_id)
        made.append((model or NOT_STATED, gpus, str(h.compared), percent(h.coverage), *errors))
    shown, idle = _compared(made, at=2)
    return Table(title=f"{name}: by model", columns=columns, rows=shown, note=idle)


def _ranking(evaluation: Evaluation, rows: Sequence[Row], name: str) -> list[Table]:
    groups = ranking.group_rankings(accuracy.select(rows, name, "heldout"), evaluation.facts)
    order = ranking.summary(groups)
    if not groups:
        return []
    columns = (
        Column("group", numeric=False),
        Column("rows"),
        Column("missing", help="measured rows of the group without a projection", minor=True),
        Column("tau-b"),
        Column("agreement"),
        Column("regret", help="throughput lost by running the projected best"),
        Column("what differs", numeric=False),
    )
    made = tuple(
        (
            g.group,
            str(g.rows),
            str(g.missing),
            number(g.tau),
            percent(g.agreement, 0),
            percent(g.regret),
            _few(g.differs),
        )
        for g in sorted(groups, key=_worst_first)
    )
    worst = f" (worst {percent(order.worst_regret)}: {order.worst_group})" if order.worst_group else ""
    note = (
        f"{order.groups} groups, {order.rows} rows: mean tau-b {number(order.tau)}, pairwise agreement"
        f" {percent(order.agreement)} (pooled {percent(order.pooled_agreement)}), top-1 regret {percent(order.regret)}"
        f"{worst}. Held out; pairs within"
        f" {percent(ranking.NOISE, 0)} of each other are ties."
    )
    return [Table(title=f"{name}: ranking inside groups", columns=columns, rows=made, note=note)]


def _worst_first(group: ranking.GroupRanking) -> tuple[float, str]:
    return (2.0 if group.tau is None else group.tau, group.group)


def _compared(made: Sequence[tuple[str, ...]], at: int = 1) -> tuple[tuple[tuple[str, ...], ...], str]:
    """Lines with something compared (column ``at``), by name; and a sentence that names the others."""
    ordered = sorted(made, key=lambda row: row[0].lower())
    idle = [row[0] for row in ordered if row[at] == "0"]
    said = f"Nothing to compare (see the refusals): {', '.join(idle)}." if idle else ""
    return tuple(row for row in ordered if row[at] != "0"), said


def _few(keys: Sequence[str], most: int = 4) -> str:
    return ", ".join(keys[:most]) + (f" +{len(keys) - most}" if len(keys) > most else "")
