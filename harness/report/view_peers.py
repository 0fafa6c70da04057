"""Projectors of others beside ours on the same rows: those that the other one can express."""

from __future__ import annotations

from dataclasses import replace

from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.predictors import PEERS
from harness.report.spec import Spec, table
from harness.report.table import Column, Table

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
