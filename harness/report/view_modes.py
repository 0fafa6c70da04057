"""Both modes of our projector side by side: the error of each, and how far apart the two are."""

from __future__ import annotations

from collections.abc import Sequence

from harness.contracts.results import Row
from harness.report.table import NONE, Column, Table, number, percent, signed
from harness.score import accuracy

__all__ = ["MEASURED", "SIMULATED", "side_by_side"]

SIMULATED, MEASURED = "simulate", "benchmark"

Pair = tuple[Row, Row]


def side_by_side(rows: Sequence[Row]) -> list[Table]:
    """Held-out rows that both modes project: by model, and one by one. Empty where only one mode was run."""
    simulated = {r.run_id: r for r in accuracy.select(rows, SIMULATED, "heldout") if r.projected_tgs is not None}
    pairs = [
        (simulated[b.run_id], b)
        for b in accuracy.select(rows, MEASURED, "heldout")
        if b.run_id in simulated and b.projected_tgs is not None
    ]
    return [_by_model(pairs), _every(pairs)] if pairs else []


def _apart(pair: Pair) -> float:
    simulated, recorded = pair
    return (recorded.projected_tgs or 0.0) / (simulated.projected_tgs or 1.0) - 1.0


def _by_model(pairs: Sequence[Pair]) -> Table:
    columns = (
        Column("model", numeric=False),
        Column("rows", help="runs that both modes project"),
        Column("compared"),
        Column("simulate", help="held-out MAPE"),
        Column("benchmark", help="held-out MAPE"),
        Column("difference", help="mean of |benchmark / simulate − 1|"),
        Column("measured share", help="mean share of the step that rests on measured kernels"),
    )
    by_model: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_model.setdefault(pair[0].model, []).append(pair)
    made = [_line(model or NONE, members) for model, members in sorted(by_model.items())]
    note = "Plain means over the rows that both modes project."
    rows = (_line("all", pairs), *made)
    return Table(title="simulate and benchmark side by side (held out)", columns=columns, rows=rows, note=note)


def _line(name: str, pairs: Sequence[Pair]) -> tuple[str, ...]:
    both = [(abs(s.error), abs(b.error)) for s, b in pairs if s.error is not None and b.error is not None]
    shares = [b.measured_share for _, b in pairs if b.measured_share is not None]
    return (
        name,
        str(len(pairs)),
        str(len(both)),
        percent(_mean([s for s, _ in both])),
        percent(_mean([b for _, b in both])),
        percent(_mean([abs(_apart(pair)) for pair in pairs])),
        percent(_mean(shares), 0),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _every(pairs: Sequence[Pair]) -> Table:
    columns = (
        Column("run", numeric=False),
        Column("measured TGS"),
        Column("simulate"),
        Column("error"),
        Column("benchmark"),
        Column("error"),
        Column("difference"),
        Column("measured share"),
    )
    rows = tuple(
        (
            *(s.run_id, number(s.measured_tgs, 0), number(s.projected_tgs, 0), signed(s.error)),
            *(number(b.projected_tgs, 0), signed(b.error), signed(_apart((s, b))), percent(b.measured_share, 0)),
        )
        for s, b in pairs
    )
    return Table(title="simulate and benchmark, run by run (held out)", columns=columns, rows=rows, detail=True)
