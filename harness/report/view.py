"""Builds the tables of a report from rows, headline first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING

from harness.contracts import frame
from harness.contracts.results import BASELINE, Evaluation
from harness.predictors import PEERS
from harness.report import view_causes, view_ranking, view_rows
from harness.report.said import said
from harness.report.spec import DEGREES, GROUPS, NOT_STATED, SPECS, stacked, table, tabled
from harness.report.table import NONE, Column, Report, Table
from harness.score import accuracy
from harness.score.figures import Figures
from harness.score.gate import Check
from projector.io.rows import grouped

if TYPE_CHECKING:
    import pandas as pd

SIMULATED, MEASURED = "simulate", "benchmark"


def side_by_side(rows: pd.DataFrame) -> list[Table]:
    """Returns held-out rows that both modes project, by model, and one by one. Empty where only one mode was run."""
    simulated, recorded = (
        frame.part(rows, predictor=name, fit="heldout").dropna(subset=["projected_tgs"]).set_index("run_id")
        for name in (SIMULATED, MEASURED)
    )
    pairs = recorded.join(simulated[["projected_tgs", "error"]].add_suffix("_simulated"), how="inner")
    pairs["apart"] = pairs["projected_tgs"] / pairs["projected_tgs_simulated"] - 1.0
    return [_by_model(pairs), tabled("side_by_side_rows", frame.lines(pairs))] if len(pairs) else []


def _by_model(pairs: pd.DataFrame) -> Table:
    both = pairs["error"].notna() & pairs["error_simulated"].notna()
    sizes = pairs[["error", "error_simulated"]].abs().where(both, axis=0)
    known = pairs[["measured_share"]].assign(**sizes, apart=pairs["apart"].abs(), compared=both)
    groups = (known.groupby(by) for by in (["all"] * len(pairs), pairs["model"].to_numpy()))
    means = (group.mean().assign(rows=group.size(), compared=group["compared"].sum()) for group in groups)
    return tabled("side_by_side", [line for mean in means for line in frame.lines(mean)])


def same_rows(evaluation: Evaluation) -> list[Table]:
    """Returns a table where a peer was run: for each peer, every predictor on the peer's rows, its own line first."""
    by_peer: list[tuple[tuple[str, ...], Table]] = []
    for peer in (name for name in evaluation.predictors if name in PEERS):
        held = frame.part(evaluation.once, predictor=peer, fit="heldout")
        shared = evaluation.once[evaluation.once["run_id"].isin(held["run_id"][held["error"].notna()])]
        shown = table(shared, SPECS["peers"])
        own_first = tuple(sorted(shown.rows, key=lambda line: line[0] != peer))
        by_peer.append(((peer,), replace(shown, rows=own_first)))
    return [shown] if by_peer and (shown := stacked(["rows that it can express"], by_peer)).rows else []


def intervals(rows: pd.DataFrame, name: str) -> Table:
    """Tabulates coverage and width of the held-out intervals of one predictor: overall, by GPU, family and framework."""
    spec = SPECS["intervals"]
    whole = replace(table(rows, spec, name), note=spec.note)
    keys = ("gpu", "family", "framework")
    by = [((GROUPS[key],), table(rows, replace(spec, by=(key,)), name)) for key in keys]
    return stacked(["by", "of"], [(("all", NONE), whole), *by])


def build(evaluation: Evaluation, checks: Sequence[Check] = (), title: str = "Projection accuracy") -> Report:
    """Returns the report of an evaluation. Runs that several suites select count once."""
    names = evaluation.predictors
    names_shown = [n for n in names if n != BASELINE] or names
    rows = evaluation.once
    tables = [table(rows, SPECS["headline"]), *same_rows(evaluation), table(rows, SPECS["orders"])]
    for name in names_shown:
        tables += [
            table(rows, SPECS["by_gpu"], name),
            table(rows, SPECS["by_model"], name),
            *view_ranking.of_predictor(evaluation, name),
            intervals(rows, name),
            view_rows.few(evaluation, name),
            view_rows.unmeasured(evaluation, name),
            view_rows.doubted_rows(evaluation, name),
            *details(evaluation, name, repeats=name == "benchmark" and "simulate" in names_shown),
        ]
        causes = view_causes.of_predictor(evaluation, name)  # details: they go to files, not to the terminal
        tables += [replace(t, title=f"{name}: {t.title[0].lower()}{t.title[1:]}", detail=True) for t in causes]
    tables += side_by_side(rows)
    tables += [shown for name in names_shown for shown in _every_row_and_refusal(rows, name) if shown.rows]
    return Report.of(title, tables, sentences(evaluation), map(str, checks))


def details(evaluation: Evaluation, name: str, *, repeats: bool = False) -> list[Table]:
    """Returns the tables of one predictor behind the headline, in reading order: memory, assumptions, refusals, and error by
    anything else that a reader asks for. ``repeats``: tables that do not depend on the mode become
    details, because those of another mode show them already."""
    rows = evaluation.once
    plain = frame.part(rows, predictor=name, fit="uncalibrated")
    measured = rows[rows["memory_error"].notna()]
    same = (table(measured, SPECS["memory"], name), _verdicts(plain, name), _refusals(plain, name))
    tables = [
        *(replace(shown, detail=repeats) for shown in same),
        *(table(rows, SPECS[key], name) for key in ("assumed", "by_cell", "by_framework", "by_family", "by_precision")),
        _by_parallelism(rows, name),
        table(rows, SPECS["by_source"], name),
    ]
    return [each for each in tables if each.rows]


def _by_parallelism(rows: pd.DataFrame, name: str) -> Table:
    """Returns a line for each value of every degree; a row counts once in each degree."""
    known, lines = rows[rows["complete"]], []
    for key, (words, _) in DEGREES.items():
        by_value = table(known, replace(SPECS["by_parallelism"], by=(key,)), name)
        lines += [(f"{words} {line[0]}", *line[1:]) for line in by_value.rows if line[0] != NOT_STATED]
    columns = (Column("parallelism", numeric=False), *by_value.columns[1:])
    return replace(by_value, columns=columns, rows=tuple(lines))


def _verdicts(rows: pd.DataFrame, name: str) -> Table:
    verdicts = accuracy.verdicts(rows)
    lines = (
        ("projected: fits", verdicts.both_fit, len(verdicts.missed)),
        ("projected: too close to tell", *verdicts.close),
        ("projected: out of memory", len(verdicts.false_alarm), verdicts.both_out),
    )
    note = "; ".join(
        f"{words}: {', '.join(ids[:3])}" + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
        for words, ids in (("false alarms", verdicts.false_alarm), ("missed", verdicts.missed))
        if ids
    )
    return tabled("fits", lines if verdicts.total else (), name=name, note=note)


def _refusals(rows: pd.DataFrame, name: str) -> Table:
    by_reason = grouped((refusal.reason, refusal) for refusal in accuracy.refusals(rows))
    lines = [
        (reason, ", ".join(r.status for r in same), sum(len(r.run_ids) for r in same), same[0].run_ids[0])
        for reason, same in by_reason.items()
    ]
    total = int(rows["projected_step_seconds"].isna().sum())
    return tabled("refusals", sorted(lines, key=lambda line: -line[2]), name=name, total=total, rows=len(rows))


def _every_row_and_refusal(rows: pd.DataFrame, name: str) -> tuple[Table, Table]:
    plain = frame.part(rows, predictor=name, fit="uncalibrated")
    held = frame.part(rows, predictor=name, fit="heldout")
    lines = frame.lines(held.assign(plain=held["run_id"].map(plain.set_index("run_id")["error"])))
    refused = frame.lines(plain[plain["projected_step_seconds"].isna()])
    span = lambda r: None if isnan(r.interval_low) else f"{r.interval_low:.0f} to {r.interval_high:.0f}"  # noqa: E731
    return tabled("every_row", lines, name=name, span=span), tabled("every_refusal", refused, name=name)


def sentences(evaluation: Evaluation) -> tuple[str, ...]:
    """Returns the headline of every predictor in one sentence each."""
    by_predictor = frame.parts(evaluation.once, ["predictor"])
    figures = ((name, Figures(rows, evaluation.once)) for (name,), rows in by_predictor)
    return tuple("".join(said("predictor", {"name": name, "of": of})) for name, of in figures)
