"""The figures that the project answers for, in one report: coverage, error, ranking, memory, and speed. Goals are the
project's own. A figure is of ``simulate`` unless it says otherwise."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from harness.calibrate.held_out import Judgement
from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.evaluation.speed import Speed
from harness.report import view, view_causes, view_posterior, view_ranking
from harness.report.said import lines, said
from harness.report.spec import GOAL, SPECS, table, tabled, values
from harness.report.table import NONE, Report, Table, main_columns, number
from harness.score import accuracy
from harness.score.figures import Figures

MAIN = "simulate"

# The source that publishes every switch and every rank's peak of its runs, for which the memory goal is set. The memory
# model was written with these runs in sight, so their error is in-sample and that of the others stands beside it.
MEMORY_SOURCE = "moorethreads/simumax"


def build(
    evaluation: Evaluation,
    speed: Speed | None = None,
    suites: Mapping[str, Collection[str]] | None = None,
    judged: Judgement | None = None,
) -> Report:
    """Returns the report. ``evaluation``: all measured runs under :data:`MAIN`, the baseline and any other predictor.
    ``suites``: run ids by suite, for the order inside groups. ``judged``: rows judged by other sources
    (:mod:`harness.calibrate.held_out`)."""
    rows = evaluation.once
    of = Figures.of(rows, MAIN)
    tables = [
        _summary(of),
        main_columns(table(rows, SPECS["headline"])),
        main_columns(table(rows, SPECS["orders"])),
        view_ranking.by_suite(evaluation, MAIN, suites),
        table(rows, SPECS["figures_gpu"], MAIN),
        table(rows, SPECS["figures_model"], MAIN),
        *([view_posterior.by_group(judged), view_posterior.own_runs(judged.unseen)] if judged else []),
        view.intervals(rows, MAIN),
        *view_causes.of_predictor(evaluation, MAIN),
        table(rows[rows["memory_error"].notna()], SPECS["figures_memory"], MAIN),
        *([_speed(speed)] if speed else []),
    ]
    return Report.of("Figures to report", tables)


def _summary(of: Figures) -> Table:
    order = of.order
    beaten = [Figures(part, of.whole).beats for _, part in frame.parts(of.rows, ["gpu"])]
    judged = [b for b in beaten if b is not None]
    simumax = (values(of.rows, "publisher") == MEMORY_SOURCE).to_numpy(dtype=bool)
    memory, others = (
        accuracy.memory_error(part.drop_duplicates("run_id")) for part in (of.rows[simumax], of.rows[~simumax])
    )
    item = {
        "of": of,
        "goal": GOAL,
        "won": sum(judged),
        "judged": len(judged),
        "all_won": bool(judged) and all(judged),
        "ranged": "" if order.tau_range is None else f", {number(order.tau_range[0])} to {number(order.tau_range[1])}",
        "memory": memory,
        "others": others or {"mape": None, "compared": 0},
    }
    return tabled("in_short", lines("in_short", item), heaviest=_heaviest(of))


def _heaviest(of: Figures) -> str:
    """Returns a sentence on the cell that weighs most in the held-out macro error: one odd source can carry much of it."""
    compared = of.compared
    if compared.empty:
        return ""
    sizes = compared["error"].abs().groupby([compared[name] for name in frame.CELL], sort=False)
    means = sizes.mean()
    at = int(means.to_numpy().argmax())
    named = " × ".join(part or NONE for part in means.index.tolist()[at])
    item = {"points": 100 * means.iloc[at] / len(means), "cells": len(means), "named": named, "error": means.iloc[at]}
    return " " + said("heaviest", {**item, "rows": sizes.size().iloc[at]})[0]


def _speed(speed: Speed) -> Table:
    item = {**vars(speed), "loads": ", ".join(speed.heavy) or "none", "light": not speed.heavy}
    return tabled("speed", lines("speed", item))
