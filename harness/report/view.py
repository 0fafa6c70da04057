"""The reader's view: from rows to the tables of a report, headline first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.contracts import frame
from harness.contracts.results import BASELINE, Evaluation
from harness.predictors import PEERS
from harness.report import view_causes, view_detail, view_intervals, view_ranking, view_rows
from harness.report.spec import Spec, table
from harness.report.table import Column, Report, Table, number, percent
from harness.score.figures import Figures
from harness.score.gate import Check
from projector.io.table import rate

if TYPE_CHECKING:
    import pandas as pd

from harness.report.spec import percent0, stated
from harness.report.table import figure, listed, signed, text

SIMULATED, MEASURED = "simulate", "benchmark"


def side_by_side(rows: pd.DataFrame) -> list[Table]:
    """Held-out rows that both modes project: by model, and one by one. Empty where only one mode was run."""
    simulated, recorded = (
        frame.part(rows, predictor=name, fit="heldout").dropna(subset=["projected_tgs"]).set_index("run_id")
        for name in (SIMULATED, MEASURED)
    )
    pairs = recorded.join(simulated[["projected_tgs", "error"]].add_suffix("_simulated"), how="inner")
    pairs["apart"] = pairs["projected_tgs"] / pairs["projected_tgs_simulated"] - 1.0
    return [_by_model(pairs), _every(pairs)] if len(pairs) else []


def _by_model(pairs: pd.DataFrame) -> Table:
    both = pairs["error"].notna() & pairs["error_simulated"].notna()
    sizes = pairs[["error", "error_simulated"]].abs().where(both, axis=0)
    known = pairs[["measured_share"]].assign(**sizes, apart=pairs["apart"].abs(), compared=both)
    made = (
        text("model", "Index", stated),
        figure("rows", "rows", help="runs that both modes project"),
        figure("compared", "compared"),
        figure("simulate", "error_simulated", percent, "held-out MAPE"),
        figure("benchmark", "error", percent, "held-out MAPE"),
        figure("difference", "apart", percent, "mean of |benchmark / simulate − 1|"),
        figure("measured share", "measured_share", percent0, "mean share of the step that rests on measured kernels"),
    )
    lines = [
        line
        for by in (["all"] * len(pairs), pairs["model"].to_numpy())
        for line in frame.lines(
            known.groupby(by).mean().assign(rows=known.groupby(by).size(), compared=known.groupby(by)["compared"].sum())
        )
    ]
    note = "Plain means over the rows that both modes project."
    return listed("simulate and benchmark side by side (held out)", lines, made, note)


def _every(pairs: pd.DataFrame) -> Table:
    made = (
        text("run", "Index"),
        figure("measured TGS", "measured_tgs", rate),
        figure("simulate", "projected_tgs_simulated", rate),
        figure("error", "error_simulated", signed),
        figure("benchmark", "projected_tgs", rate),
        figure("error", "error", signed),
        figure("difference", "apart", signed),
        figure("measured share", "measured_share", percent0),
    )
    return listed("simulate and benchmark, run by run (held out)", frame.lines(pairs), made, detail=True)


_SPEC = Spec(
    title="Other projectors on the same rows",
    by=("predictor",),
    metrics=(
        *("compared", "uncalibrated", "calibrated?", "mape", "plain", "plain_bias", "bias_uncalibrated?", "worst"),
        "ms",
    ),
    note="All predictors over the rows that the named one projects and that were measured; what it cannot express is in its"
    " coverage above and among its refusals. Every predictor gets the same calibration: one factor per GPU, fitted on all"
    " rows that it projects. Plain, bias and worst are held out and weigh every row the same.",
)


def same_rows(evaluation: Evaluation) -> list[Table]:
    """One table where a peer was run: for each peer, every predictor on the peer's rows, its own line first."""
    made: list[Table] = []
    for peer in (name for name in evaluation.predictors if name in PEERS):
        held = frame.part(evaluation.once, predictor=peer, fit="heldout")
        shared = evaluation.once[evaluation.once["run_id"].isin(held["run_id"][held["error"].notna()])]
        found = table(shared, _SPEC)
        own_first = sorted(found.rows, key=lambda line: line[0] != peer)
        columns = (Column("rows that it can express", numeric=False), *found.columns)
        made.append(replace(found, columns=columns, rows=tuple((peer, *line) for line in own_first)))
    lines = tuple(line for found in made for line in found.rows)
    return [replace(made[0], rows=lines)] if lines else []


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
    tables = [table(rows, HEADLINE), *same_rows(evaluation), table(rows, ORDERS)]
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
    tables += side_by_side(rows)
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
