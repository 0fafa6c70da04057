"""The tables behind the headline: memory, assumptions, refusals, and error by anything else that a reader asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING

from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.report.spec import DEGREES, NOT_STATED, SPECS, table, tabled
from harness.report.table import Column, Table
from harness.score import accuracy
from projector.io.rows import grouped

if TYPE_CHECKING:
    import pandas as pd


def of_predictor(evaluation: Evaluation, name: str, *, repeats: bool = False) -> list[Table]:
    """Returns the tables of one predictor, in reading order. ``repeats``: tables that do not depend on the mode become
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


def of_rows(rows: pd.DataFrame, names: Sequence[str]) -> list[Table]:
    """Returns every row of each predictor, and every refusal by run: the full lists."""
    return [shown for name in names for shown in _every_row_and_refusal(rows, name) if shown.rows]


def _every_row_and_refusal(rows: pd.DataFrame, name: str) -> tuple[Table, Table]:
    plain = frame.part(rows, predictor=name, fit="uncalibrated")
    held = frame.part(rows, predictor=name, fit="heldout")
    lines = frame.lines(held.assign(plain=held["run_id"].map(plain.set_index("run_id")["error"])))
    refused = frame.lines(plain[plain["projected_step_seconds"].isna()])
    span = lambda r: None if isnan(r.interval_low) else f"{r.interval_low:.0f} to {r.interval_high:.0f}"  # noqa: E731
    return tabled("every_row", lines, name=name, span=span), tabled("every_refusal", refused, name=name)
