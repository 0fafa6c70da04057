"""Projectors of others beside ours on the same rows: those that the other one can express."""

from __future__ import annotations

from collections.abc import Sequence

from harness.contracts.results import Evaluation, Row
from harness.predictors import PEERS
from harness.report.table import NONE, Column, Table, percent, signed
from harness.score import accuracy

__all__ = ["same_rows"]

_COLUMNS = (
    Column("rows that it can express", numeric=False),
    Column("predictor", numeric=False),
    Column("compared"),
    Column("uncalibrated", help="macro MAPE of TGS with no fitted factor"),
    Column("calibrated", help="macro MAPE with one factor per GPU fitted on all rows", minor=True),
    Column("held out", help="macro MAPE, each row by a factor that saw no row of its model family on that GPU"),
    Column("plain", help="held-out MAPE, every row weighing the same"),
    Column("bias", help="held-out mean of the signed error"),
    Column("bias uncalibrated", help="mean of the signed error with no fitted factor", minor=True),
    Column("worst"),
    Column("ms", help="mean milliseconds of one projection"),
)
_NOTE = (
    "All predictors over the rows that the named one projects and that were measured; what it cannot express is in its"
    " coverage above and among its refusals. Every predictor gets the same calibration: one factor per GPU, fitted on all"
    " rows that it projects. Plain, bias and worst are held out and weigh every row the same."
)


def same_rows(evaluation: Evaluation, rows: Sequence[Row], names: Sequence[str]) -> list[Table]:
    """One table where a peer was run: for each peer, every predictor on the peer's rows. Empty otherwise."""
    made = [line for peer in names if peer in PEERS for line in _lines(evaluation, rows, peer, names)]
    if not made:
        return []
    return [Table(title="Other projectors on the same rows", columns=_COLUMNS, rows=tuple(made), note=_NOTE)]


def _lines(evaluation: Evaluation, rows: Sequence[Row], peer: str, names: Sequence[str]) -> list[tuple[str, ...]]:
    expressed = {r.run_id for r in accuracy.comparable(accuracy.select(rows, peer, "heldout"))}
    if not expressed:
        return []
    shared = [r for r in rows if r.run_id in expressed]
    others = [name for name in names if name != peer]
    return [(peer, *_line(evaluation, shared, name)) for name in (peer, *others)]


def _line(evaluation: Evaluation, rows: Sequence[Row], name: str) -> tuple[str, ...]:
    raw, fitted, held = (
        accuracy.summarise(accuracy.select(rows, name, fit), evaluation.facts)
        for fit in ("uncalibrated", "calibrated", "heldout")
    )
    macro = (percent(raw.macro_mape), percent(fitted.macro_mape), percent(held.macro_mape))
    plain = (percent(held.mape), signed(held.bias), signed(raw.bias), signed(held.worst))
    return (name, str(held.compared), *macro, *plain, _milliseconds(accuracy.select(rows, name, "heldout")))


def _milliseconds(rows: Sequence[Row]) -> str:
    taken = [r.seconds_to_project for r in rows if r.seconds_to_project is not None]
    return f"{1e3 * sum(taken) / len(taken):.2f}" if taken else NONE
