"""The tables behind the headline: memory, assumptions, refusals, and error by whatever else a reader asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING, Any

from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.report.parallelism import DEGREES
from harness.report.spec import NOT_STATED, SPECS, table, tabled
from harness.report.table import Column, Table
from harness.score import accuracy
from projector.io.rows import grouped

if TYPE_CHECKING:
    import pandas as pd


def of_predictor(evaluation: Evaluation, name: str, *, repeats: bool = False) -> list[Table]:
    """Tables of one predictor, in reading order. ``repeats``: those that do not depend on the mode were shown already."""
    rows = evaluation.once
    plain = frame.part(rows, predictor=name, fit="uncalibrated")
    measured = rows[rows["memory_error"].notna()]
    made = [
        *(
            replace(each, detail=repeats)
            for each in (table(measured, SPECS["memory"], name), _verdicts(plain, name), _refusals(plain, name))
        ),
        *(table(rows, SPECS[key], name) for key in ("assumed", "by_cell", "by_framework", "by_family", "by_precision")),
        _by_parallelism(rows, name),
        table(rows, SPECS["by_source"], name),
    ]
    return [each for each in made if each.rows]


def _by_parallelism(rows: pd.DataFrame, name: str) -> Table:
    """A line a value of every degree; a row counts once in each degree."""
    known, lines = rows[rows["complete"]], []
    for key, (words, _) in DEGREES.items():
        found = table(known, replace(SPECS["by_parallelism"], by=(key,)), name)
        lines += [(f"{words} {line[0]}", *line[1:]) for line in found.rows if line[0] != NOT_STATED]
    columns = (Column("parallelism", numeric=False), *found.columns[1:])
    return replace(found, columns=columns, rows=tuple(lines))


def _verdicts(rows: pd.DataFrame, name: str) -> Table:
    v = accuracy.verdicts(rows)
    made = (
        ("projected: fits", v.both_fit, len(v.missed)),
        ("projected: too close to tell", *v.close),
        ("projected: out of memory", len(v.false_alarm), v.both_out),
    )
    note = "; ".join(
        f"{words}: {', '.join(ids[:3])}" + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
        for words, ids in (("false alarms", v.false_alarm), ("missed", v.missed))
        if ids
    )
    return tabled("fits", made if v.total else (), name=name, note=note)


def _refusals(rows: pd.DataFrame, name: str) -> Table:
    by_reason = grouped((refusal.reason, refusal) for refusal in accuracy.refusals(rows))
    found = [
        (reason, ", ".join(r.status for r in same), sum(len(r.run_ids) for r in same), same[0].run_ids[0])
        for reason, same in by_reason.items()
    ]
    total = int(rows["projected_step_seconds"].isna().sum())
    return tabled("refusals", sorted(found, key=lambda line: -line[2]), name=name, total=total, rows=len(rows))


def of_rows(rows: pd.DataFrame, names: Sequence[str]) -> list[Table]:
    """Every row of each predictor, and every refusal by run: the full lists."""
    made = [each for name in names for each in _every(rows, name)]
    return [each for each in made if each.rows]


def _every(rows: pd.DataFrame, name: str) -> tuple[Table, Table]:
    plain = frame.part(rows, predictor=name, fit="uncalibrated")
    held = frame.part(rows, predictor=name, fit="heldout")
    lines = frame.lines(held.assign(plain=held["run_id"].map(plain.set_index("run_id")["error"])))
    refused = frame.lines(plain[plain["projected_step_seconds"].isna()])
    return tabled("every_row", lines, name=name, span=_span), tabled("every_refusal", refused, name=name)


def _span(row: Any) -> str | None:
    """The interval of a line of the frame as text, tokens/s/GPU; None where there is none."""
    return None if isnan(row.interval_low) else f"{row.interval_low:.0f} to {row.interval_high:.0f}"
