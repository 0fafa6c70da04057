"""The reader's view: from rows to the tables of a report, headline first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.contracts import frame
from harness.contracts.results import BASELINE, Evaluation
from harness.report import view_causes, view_detail, view_intervals, view_modes, view_peers, view_ranking, view_rows
from harness.report.spec import Spec, table
from harness.report.table import Report, Table, number, percent
from harness.score.figures import Figures
from harness.score.gate import Check

HEADLINE = Spec(
    title="Throughput error",
    by=("predictor",),
    metrics=(
        *("rows?", "incomplete?", "compared", "coverage", "uncalibrated", "calibrated?", "mape", "plain", "bias?"),
        *("median?", "p90?", "worst", "worst_row?"),
    ),
    note="Mean |projected / measured − 1| of tokens/s/GPU; macro: every (model family × GPU × framework) cell weighs"
    " the same, plain: every row does. Coverage: compared rows over those with a measured throughput and a whole"
    " configuration. Calibrated: by what is shipped. Held out: each row by a law and parameters that saw no row of its"
    " source; plain to worst are held out.",
)
ORDERS = Spec(
    title="Ranking inside groups, mean over groups",
    by=("predictor",),
    metrics=(
        *("groups", "ranked?", "tau", "tau_seen", "agreement", "pooled", "regret", "worst_regret?", "worst_group?"),
    ),
    needs="groups",
    note="A group holds runs of one job that differ in a few switches. Tau-b: Kendall's, 1 where the projection orders"
    " a group as measured. Seen: only groups (their number) whose rows differ in a field that a projector sees. Agreement:"
    " share of pairs in the right order; pooled: over all pairs at once. Regret: throughput lost by running the projected"
    " best.",
)
BY_GPU = Spec(
    title="{predictor}: by GPU",
    by=("gpu",),
    metrics=(
        *("compared", "coverage", "uncalibrated", "calibrated?", "mape", "plain?", "bias?", "worst", "baseline"),
        *("beaten", "worst_row?"),
    ),
    needs="compared",
    note="Macro MAPE; baseline: constant MFU, held out, on the same rows. Worst: held out, one row.",
)
BY_MODEL = Spec(
    title="{predictor}: by model",
    by=("model",),
    metrics=("gpus?", "compared", "coverage", "uncalibrated", "mape", "bias?", "worst", "worst_row?"),
    needs="compared",
)


def build(evaluation: Evaluation, checks: Sequence[Check] = (), title: str = "Projection accuracy") -> Report:
    """The report of an evaluation. Runs that several suites select count once."""
    names = evaluation.predictors
    ours = [n for n in names if n != BASELINE] or names
    rows = evaluation.once
    tables = [table(rows, HEADLINE), *view_peers.same_rows(evaluation), table(rows, ORDERS)]
    for name in ours:
        tables += [
            table(rows, BY_GPU, name),
            table(rows, BY_MODEL, name),
            *view_ranking.of_predictor(evaluation, name),
            view_intervals.of_predictor(rows, name),
            view_rows.few(evaluation, name),
            view_rows.unmeasured(evaluation, name),
            view_rows.doubted_rows(evaluation, name),
            *view_detail.of_predictor(evaluation, name, repeats=name == "benchmark" and "simulate" in ours),
            *_causes(evaluation, name),
        ]
    tables += view_modes.side_by_side(rows)
    tables += view_detail.of_rows(rows, ours)
    return Report.of(title, tables, sentences(evaluation), map(str, checks))


def _causes(evaluation: Evaluation, name: str) -> list[Table]:
    """For the files; the terminal has enough to show."""
    found = view_causes.of_predictor(evaluation, name)
    return [replace(t, title=f"{name}: {t.title[0].lower()}{t.title[1:]}", detail=True) for t in found]


def sentences(evaluation: Evaluation) -> tuple[str, ...]:
    """The headline of every predictor in one sentence each."""
    found = frame.parts(evaluation.once, ["predictor"])
    return tuple(_sentence(name, Figures(rows, evaluation.once)) for (name,), rows in found)


def _sentence(name: str, of: Figures) -> str:
    said = (
        f"{name}: held-out TGS error {percent(of.held.macro_mape)} macro ({percent(of.held.mape)} plain) over"
        f" {of.held.compared} rows, coverage {percent(of.held.coverage)}"
    )
    if of.order.tau is not None:
        said += f", Kendall tau-b {number(of.order.tau)} over {of.order.groups} groups"
    return said
