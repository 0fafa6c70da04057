"""The tables behind the headline: memory, assumptions, factors, refusals, and error by whatever else a reader asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.contracts.results import Evaluation, Row
from harness.report import view_intervals
from harness.report.parallelism import DEGREES, degrees, order
from harness.report.table import NONE, Column, Table, number, percent, signed
from harness.score import accuracy

__all__ = ["of_predictor", "of_rows"]


def of_predictor(evaluation: Evaluation, rows: Sequence[Row], name: str, *, repeats: bool = False) -> list[Table]:
    """Tables of one predictor, in reading order. ``repeats``: those that do not depend on the mode were shown already."""
    uncalibrated = accuracy.select(rows, name, "uncalibrated")
    facts = evaluation.facts
    made = [
        replace(_memory(evaluation, uncalibrated, name), detail=repeats),
        replace(_verdicts(evaluation, uncalibrated, name), detail=repeats),
        replace(_refusals(uncalibrated, name), detail=repeats),
        _by(
            evaluation, rows, name, "assumptions", lambda r: "with" if facts[r.run_id].assumed else "none", detail=False
        ),
        _by(evaluation, rows, name, "cell", lambda r: ", ".join(part or NONE for part in accuracy.cell(r))),
        _by(evaluation, rows, name, "framework", lambda r: r.framework),
        _by(evaluation, rows, name, "family", lambda r: r.family),
        _by(evaluation, rows, name, "precision", lambda r: r.precision),
        _by_parallelism(evaluation, rows, name),
        _by(evaluation, rows, name, "source", lambda r: facts[r.run_id].source),
        _factors(evaluation, name),
        _fallbacks(evaluation, name),
    ]
    return [table for table in made if table.rows]


def _by(
    evaluation: Evaluation,
    rows: Sequence[Row],
    name: str,
    title: str,
    key: Callable[[Row], str],
    *,
    detail: bool = True,
) -> Table:
    columns = (
        Column(title, numeric=False),
        Column("rows"),
        Column("compared"),
        Column("coverage"),
        Column("uncalibrated"),
        Column("held out"),
        Column("plain", minor=True),
        Column("bias"),
        Column("median", minor=True),
        Column("p90", minor=True),
        Column("worst"),
        Column("worst row", numeric=False, minor=True),
    )
    made = []
    for value, members in accuracy.by(rows, key).items():
        u = accuracy.summarise(accuracy.select(members, name, "uncalibrated"), evaluation.facts)
        h = accuracy.summarise(accuracy.select(members, name, "heldout"), evaluation.facts)
        errors = (percent(u.macro_mape), percent(h.macro_mape), percent(h.mape), signed(h.macro_bias))
        tail = (percent(h.median), percent(h.p90), signed(h.worst), h.worst_id)
        made.append((value or NONE, str(h.rows), str(h.compared), percent(h.coverage), *errors, *tail))
    heading = {"assumptions": "error with and without assumptions of the importer"}.get(title, f"by {title}")
    return Table(title=f"{name}: {heading}", columns=columns, rows=tuple(sorted(made)), detail=detail)


def _by_parallelism(evaluation: Evaluation, rows: Sequence[Row], name: str) -> Table:
    """A line a value of every degree; a row counts once in each degree."""

    def value_of(key: str) -> Callable[[Row], str]:
        return lambda row: degrees(evaluation.facts[row.run_id])[key]

    made: list[tuple[str, ...]] = []
    for key, (words, _) in DEGREES.items():
        table = _by(evaluation, rows, name, "parallelism", value_of(key))
        columns = table.columns
        known = [line for line in table.rows if line[0] != NONE]
        made += [(f"{words} {line[0]}", *line[1:]) for line in sorted(known, key=lambda line: order(line[0]))]
    return Table(title=f"{name}: by parallelism", columns=columns, rows=tuple(made), note=_DEGREES, detail=True)


_DEGREES = "Rows whose source states the whole configuration. A row counts once in each degree."


def _memory(evaluation: Evaluation, rows: Sequence[Row], name: str) -> Table:
    columns = (
        Column("memory measured as", numeric=False),
        Column("compared"),
        Column("MAPE"),
        Column("plain", minor=True),
        Column("bias"),
        Column("worst"),
        Column("worst row", numeric=False, minor=True),
    )
    made = tuple(
        (m.kind, str(m.compared), percent(m.macro_mape), percent(m.mape), signed(m.bias), signed(m.worst), m.worst_id)
        for m in accuracy.memory(rows, evaluation.facts)
    )
    return Table(title=f"{name}: memory error", columns=columns, rows=made)


def _verdicts(evaluation: Evaluation, rows: Sequence[Row], name: str) -> Table:
    v = accuracy.verdicts(rows, evaluation.facts)
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


def _refusals(rows: Sequence[Row], name: str) -> Table:
    columns = (
        Column("why there is no projection", numeric=False),
        Column("status", numeric=False),
        Column("rows"),
        Column("for example", numeric=False, minor=True),
    )
    by_reason: dict[str, list[accuracy.Refusal]] = {}
    for refusal in accuracy.refusals(rows):
        by_reason.setdefault(refusal.reason, []).append(refusal)
    counted = [
        (sum(len(r.run_ids) for r in same), reason, ", ".join(r.status for r in same), same[0].run_ids[0])
        for reason, same in by_reason.items()
    ]
    ordered = sorted(counted, key=lambda line: -line[0])
    made = tuple((reason, status, str(n), example) for n, reason, status, example in ordered)
    total = sum(r.projected_step_seconds is None for r in rows)
    return Table(
        title=f"{name}: refusals",
        columns=columns,
        rows=made,
        note=f"{total} of {len(rows)} rows have no projection; a row with two reasons counts in both.",
    )


def _factors(evaluation: Evaluation, name: str) -> Table:
    columns = (
        Column("key", numeric=False),
        Column("step-time factor"),
        Column("spread", help="weighted median of |ln(measured / calibrated)|"),
        Column("rows"),
        Column("cells"),
    )
    made = tuple(
        (key, number(f.value, 3), number(f.spread, 3), str(f.rows), str(f.cells))
        for (predictor, key), f in sorted(evaluation.factors.items())
        if predictor == name
    )
    note = "What the law in use makes of the rows of a key: the mean over its (family × framework) cells."
    return Table(title=f"{name}: calibration factors", columns=columns, rows=made, note=note, detail=True)


def _fallbacks(evaluation: Evaluation, name: str) -> Table:
    columns = (Column("held out by", numeric=False), Column("rows"), Column("for example", numeric=False, minor=True))
    found: dict[str, list[str]] = {}
    for (predictor, run_id), key in evaluation.fallbacks.items():
        if predictor == name:
            found.setdefault(key or "nothing: left uncalibrated", []).append(run_id)
    made = tuple((key, str(len(ids)), ids[0]) for key, ids in found.items())
    return Table(
        title=f"{name}: rows whose family is alone on its GPU",
        columns=columns,
        rows=made,
        note="Their held-out estimate leans on other families on related GPUs.",
        detail=True,
    )


def of_rows(rows: Sequence[Row], names: Sequence[str]) -> list[Table]:
    """Every row of each predictor, and every refusal by run: the full lists."""
    made = []
    for name in names:
        made += [_every_row(rows, name), _every_refusal(rows, name)]
    return [table for table in made if table.rows]


def _every_row(rows: Sequence[Row], name: str) -> Table:
    columns = (
        Column("run", numeric=False),
        Column("model", numeric=False),
        Column("GPU", numeric=False),
        Column("GPUs"),
        Column("precision", numeric=False),
        Column("measured TGS"),
        Column("projected TGS"),
        Column("90 % interval"),
        Column("uncalibrated"),
        Column("held out"),
        Column("memory"),
        Column("status", numeric=False),
    )
    plain = {r.run_id: r.error for r in accuracy.select(rows, name, "uncalibrated")}
    made = tuple(
        (
            *(r.run_id, r.model, r.gpu, str(r.gpus), r.precision),
            *(number(r.measured_tgs, 0), number(r.projected_tgs, 0), view_intervals.span(r)),
            *(signed(plain.get(r.run_id)), signed(r.error), signed(r.memory_error), r.status),
        )
        for r in accuracy.select(rows, name, "heldout")
    )
    return Table(title=f"{name}: every row", columns=columns, rows=made, detail=True)


def _every_refusal(rows: Sequence[Row], name: str) -> Table:
    columns = (Column("run", numeric=False), Column("status", numeric=False), Column("reason", numeric=False))
    refused = [r for r in accuracy.select(rows, name, "uncalibrated") if r.projected_step_seconds is None]
    made = tuple((r.run_id, r.status, r.reason) for r in refused)
    return Table(title=f"{name}: every refusal", columns=columns, rows=made, detail=True)
