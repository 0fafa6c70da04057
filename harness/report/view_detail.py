"""The tables behind the headline: memory, assumptions, refusals, and error by whatever else a reader asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.report import view_intervals
from harness.report.parallelism import DEGREES
from harness.report.spec import NOT_STATED, Spec, table
from harness.report.table import Column, Table, figure, listed, signed, text
from harness.score import accuracy
from projector.io.table import rate

if TYPE_CHECKING:
    import pandas as pd

_ERRORS = (
    *("rows", "compared", "coverage", "uncalibrated", "mape", "plain?", "bias", "median?", "p90?", "worst"),
    "worst_row?",
)
_MEMORY = Spec(
    title="{predictor}: memory error",
    by=("memory_kind",),
    metrics=("memory_rows", "memory_mape", "memory_plain?", "memory_bias", "memory_worst", "memory_worst_row?"),
)
_ASSUMED = Spec(
    title="{predictor}: error with and without assumptions of the importer", by=("assumptions",), metrics=_ERRORS
)
_BY = tuple(
    Spec(title=f"{{predictor}}: by {name}", by=(name,), metrics=_ERRORS, detail=True)
    for name in ("cell", "framework", "family", "precision")
)
_SOURCE = replace(_BY[0], title="{predictor}: by source", by=("publisher",))


def of_predictor(evaluation: Evaluation, name: str, *, repeats: bool = False) -> list[Table]:
    """Tables of one predictor, in reading order. ``repeats``: those that do not depend on the mode were shown already."""
    rows = evaluation.once
    plain = frame.part(rows, predictor=name, fit="uncalibrated")
    measured = rows[rows["memory_error"].notna()]
    made = [
        *(
            replace(each, detail=repeats)
            for each in (table(measured, _MEMORY, name), _verdicts(plain, name), _refusals(plain, name))
        ),
        table(rows, _ASSUMED, name),
        *(table(rows, spec, name) for spec in _BY),
        _by_parallelism(rows, name),
        table(rows, _SOURCE, name),
    ]
    return [each for each in made if each.rows]


def _by_parallelism(rows: pd.DataFrame, name: str) -> Table:
    """A line a value of every degree; a row counts once in each degree."""
    known, lines = rows[rows["complete"]], []
    for key, (words, _) in DEGREES.items():
        found = table(known, Spec(title="{predictor}: by parallelism", by=(key,), metrics=_ERRORS, detail=True), name)
        lines += [(f"{words} {line[0]}", *line[1:]) for line in found.rows if line[0] != NOT_STATED]
    note = "Rows whose source states the whole configuration. A row counts once in each degree."
    columns = (Column("parallelism", numeric=False), *found.columns[1:])
    return replace(found, columns=columns, rows=tuple(lines), note=note)


def _verdicts(rows: pd.DataFrame, name: str) -> Table:
    v = accuracy.verdicts(rows)
    columns = (Column("", numeric=False), Column("measured: ran"), Column("measured: out of memory"))
    made = (
        ("projected: fits", str(v.both_fit), str(len(v.missed))),
        ("projected: too close to tell", str(v.close[0]), str(v.close[1])),
        ("projected: out of memory", str(len(v.false_alarm)), str(v.both_out)),
    )
    note = "; ".join(
        f"{words}: {', '.join(ids[:3])}" + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
        for words, ids in (("false alarms", v.false_alarm), ("missed", v.missed))
        if ids
    )
    return Table(title=f"{name}: does it fit in memory?", columns=columns, rows=made if v.total else (), note=note)


def _refusals(rows: pd.DataFrame, name: str) -> Table:
    by_reason: dict[str, list[accuracy.Refusal]] = {}
    for refusal in accuracy.refusals(rows):
        by_reason.setdefault(refusal.reason, []).append(refusal)
    found = sorted(by_reason.values(), key=lambda same: -sum(len(r.run_ids) for r in same))
    made = (
        text("why there is no projection", lambda same: same[0].reason),
        text("status", lambda same: ", ".join(r.status for r in same)),
        figure("rows", lambda same: sum(len(r.run_ids) for r in same)),
        text("for example", lambda same: same[0].run_ids[0], minor=1),
    )
    total = int(rows["projected_step_seconds"].isna().sum())
    note = f"{total} of {len(rows)} rows have no projection; a row with two reasons counts in both."
    return listed(f"{name}: refusals", found, made, note)


def of_rows(rows: pd.DataFrame, names: Sequence[str]) -> list[Table]:
    """Every row of each predictor, and every refusal by run: the full lists."""
    made = [each for name in names for each in (_every_row(rows, name), _every_refusal(rows, name))]
    return [each for each in made if each.rows]


def _every_row(rows: pd.DataFrame, name: str) -> Table:
    plain = frame.part(rows, predictor=name, fit="uncalibrated").set_index("run_id")["error"]
    held = frame.part(rows, predictor=name, fit="heldout")
    made = (
        text("run", "run_id"),
        text("model", "model"),
        text("GPU", "gpu"),
        figure("GPUs", "gpus"),
        text("precision", "precision"),
        figure("measured TGS", "measured_tgs", rate),
        figure("projected TGS", "projected_tgs", rate),
        figure("90 % interval", view_intervals.span),
        figure("uncalibrated", "plain", signed),
        figure("held out", "error", signed),
        figure("memory", "memory_error", signed),
        text("status", "status"),
    )
    lines = frame.lines(held.assign(plain=held["run_id"].map(plain)))
    return listed(f"{name}: every row", lines, made, detail=True)


def _every_refusal(rows: pd.DataFrame, name: str) -> Table:
    plain = frame.part(rows, predictor=name, fit="uncalibrated")
    made = (text("run", "run_id"), text("status", "status"), text("reason", "reason"))
    refused = frame.lines(plain[plain["projected_step_seconds"].isna()])
    return listed(f"{name}: every refusal", refused, made, detail=True)
