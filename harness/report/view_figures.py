"""The figures that the project answers for, in one report: coverage, error, ranking, memory, and speed. Goals are the
project's own. A figure is of ``simulate`` unless it says otherwise."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from harness.calibrate.held_out import Judgement
from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.evaluation.speed import Speed
from harness.report import view, view_causes, view_posterior, view_ranking
from harness.report.said import said
from harness.report.spec import GOAL, SPECS, table, tabled, values, yes_no
from harness.report.table import NONE, Report, Table, main_columns, number, percent
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
    plain, held, order = of.uncalibrated, of.held, of.order
    beaten = [Figures(part, of.whole).beats for _, part in frame.parts(of.rows, ["gpu"])]
    judged = [b for b in beaten if b is not None]
    won = bool(judged) and all(judged)
    simumax = (values(of.rows, "publisher") == MEMORY_SOURCE).to_numpy(dtype=bool)
    memory, others = (
        accuracy.memory_error(part.drop_duplicates("run_id")) for part in (of.rows[simumax], of.rows[~simumax])
    )
    coverage = f"{percent(held.coverage)} ({held.compared} of {held.eligible} rows)"
    ranged = "" if order.tau_range is None else f", {number(order.tau_range[0])} to {number(order.tau_range[1])}"
    tau = f"{number(order.tau)} ({order.groups} groups{ranged})"
    fit = None if memory is None else memory.mape
    lines = (
        ("coverage of runs with a whole configuration", coverage, *_goal(held.coverage, 0.90, least=True)),
        ("MAPE of tokens/s/GPU, uncalibrated", _means(plain.macro_mape, plain.mape), "", ""),
        ("the same, held out", _means(held.macro_mape, held.mape), *_goal(held.macro_mape, 0.15)),
        ("GPUs where it beats constant MFU, held out", f"{sum(judged)} of {len(judged)}", "all", yes_no(won)),
        ("Kendall's tau-b, mean over groups, held out", tau, "", ""),
        _covered(of),
        ("MAPE of peak memory, SimuMax runs (in-sample)", _peaks(memory, 2), *_goal(fit, 0.05)),
        ("the same, all other runs", _peaks(others), "", ""),
    )
    return tabled("in_short", lines, heaviest=_heaviest(of))


def _peaks(found: accuracy.MemorySummary | None, digits: int = 1) -> str:
    return f"{NONE} (0 rows)" if found is None else f"{percent(found.mape, digits)} ({found.compared} rows)"


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


def _covered(of: Figures) -> tuple[str, str, str, str]:
    low, high = GOAL
    title = "measurements inside their 90 % interval, held out"
    goal = f"{percent(low, 0)} to {percent(high, 0)}"
    if of.intervals is None:
        return (title, NONE, goal, yes_no(False))
    return (title, _means(of.intervals.macro, of.intervals.inside), goal, yes_no(low <= of.intervals.macro <= high))


def _means(macro: float | None, plain: float | None) -> str:
    return f"{percent(macro)} ({percent(plain)} plain)"


def _goal(value: float | None, bound: float, *, least: bool = False) -> tuple[str, str]:
    met = value is not None and (value >= bound if least else value <= bound)
    return f"{'≥' if least else '≤'} {percent(bound, 0)}", yes_no(met)


def _speed(speed: Speed) -> Table:
    suite, again = f"{speed.suite:.2f} s", f"{speed.suite_again:.2f} s"
    rows = (
        ("one warm projection of DeepSeek-V3, PP16", _ms(speed.projection), "< 20 ms", yes_no(speed.projection < 0.02)),
        ("the same at a new sequence length", _ms(speed.fresh_projection), "", ""),
        (f"{speed.suite_name} suite, simulate, from a cold start", suite, "< 5 s", yes_no(speed.suite < 5)),
        ("the same again, in a new process", again, "< 3 s", yes_no(speed.suite_again < 3)),
        ("import projector", _ms(speed.import_bare), "< 150 ms", yes_no(speed.import_bare < 0.15)),
        ("import projector, and project behind it", _ms(speed.import_all), "", ""),
        (
            "of torch, scipy, matplotlib, pandas it loads",
            ", ".join(speed.heavy) or "none",
            "none",
            yes_no(not speed.heavy),
        ),
    )
    return tabled("speed", rows)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"
