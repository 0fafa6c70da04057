"""Tables of what the error is made of (:mod:`harness.score.causes`): every line is computed, none is an opinion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from harness.calibrate.observe import entries
from harness.contracts.results import Evaluation, Row
from harness.report.table import NONE, Column, Table, number, percent, signed
from harness.score import accuracy, causes
from projector.experience import COMMUNICATION

__all__ = ["of_predictor"]

_MOST = 15
_LN = "ln(projected / measured TGS): +10 % is 10 % too fast."


def of_predictor(evaluation: Evaluation, rows: Sequence[Row], name: str) -> list[Table]:
    """``rows``: unique ones of all predictors; the held-out ones of ``name`` with a whole configuration are split."""
    held = accuracy.select(rows, name, "heldout")
    known = [row for row in accuracy.comparable(held) if evaluation.facts[row.run_id].complete]
    if not known:
        return []
    made = [_cells(known), _ablations(known), _splits(known), _terms(known), _conditions(known, _tests(rows, known))]
    return [table for table in made if table.rows]


def _cells(known: Sequence[Row]) -> Table:
    found = causes.cells(known)
    columns = (
        Column("family", numeric=False),
        Column("GPU", numeric=False),
        Column("framework", numeric=False),
        Column("rows"),
        Column("points", help="of macro MAPE"),
        Column("so far", help="points of this line and those above", minor=True),
        Column("MAPE"),
        Column("bias", help=_LN),
        Column("scatter", help="standard deviation inside the cell", minor=True),
        Column("family's", help="bias of the family's other cells", minor=True),
        Column("GPU's", help="bias of the GPU's other cells", minor=True),
        Column("framework's", help="bias of the framework's other cells", minor=True),
        Column("largest part", numeric=False, minor=True),
        Column("where to look", numeric=False, help="which kin is off the same way by at least half as much"),
    )
    made, so_far = [], 0.0
    for c in found[:_MOST]:
        so_far += c.points
        kin = tuple(signed(c.siblings[key], 0) for key in ("family", "GPU", "framework"))
        figures = (_points(c.points), _points(so_far), percent(c.mape), signed(c.bias, 0), percent(c.scatter, 0))
        part = f"{c.largest_part} {percent(c.largest_share, 0)}"
        place = (c.family or NONE, c.gpu, c.framework or NONE, str(c.rows))
        made.append((*place, *figures, *kin, part, c.fault))
    whole = sum(c.points for c in found)
    note = (
        f"The {min(_MOST, len(found))} cells that add most to {_points(whole)} points of held-out macro MAPE in"
        f" {len(found)} cells. Bias and scatter: {_LN} Where to look: the kin whose other cells are off the same way by"
        " at least half as much; scatter where rows inside differ by more than their mean is off."
    )
    return Table(title="What the error is made of: cells", columns=columns, rows=tuple(made), note=note)


def _ablations(known: Sequence[Row]) -> Table:
    found = causes.ablations(known)
    now = found[0].error
    columns = (Column("known in advance", numeric=False), Column("values"), Column("|ln| left"), Column("less"))
    rows = tuple(
        (
            f"the bias of every {a.name}" if a.name != "nothing" else a.name,
            str(a.values),
            percent(a.error),
            _less(a, now),
        )
        for a in found
    )
    note = (
        "Macro mean |ln error| once the median of every GPU, framework, … is taken out, in sample: the most that"
        " calibrating by it could ever give. What the last line leaves is scatter between rows of one cell."
    )
    return Table(title="What the error is made of: biases", columns=columns, rows=rows, note=note)


def _less(a: causes.Ablation, now: float) -> str:
    return NONE if a.name == "nothing" else percent((now - a.error) / now if now else None, 0)


def _splits(known: Sequence[Row]) -> Table:
    columns = (
        Column("GPU", numeric=False),
        Column("rows"),
        Column("cells"),
        Column("bias", help=_LN),
        Column("|ln error|"),
        Column("without the GPU's bias"),
        Column("without the cells' biases", minor=True),
        Column("mostly", numeric=False),
    )
    made = []
    for s in causes.per_key(known, lambda row: row.gpu):
        errors = (percent(s.error), percent(s.without_bias), percent(s.without_cells))
        made.append((s.key or NONE, str(s.rows), str(s.cells), signed(s.bias), *errors, _mostly(s)))
    note = "Held out, macro. Mostly: where the larger part of the error would go."
    return Table(
        title="What the error is made of: bias and scatter by GPU", columns=columns, rows=tuple(made), note=note
    )


def _mostly(s: causes.Split) -> str:
    parts = {
        "bias of the GPU": s.error - s.without_bias,
        "biases of its cells": s.without_bias - s.without_cells if s.cells > 1 else 0.0,
        "scatter inside cells": s.without_cells,
    }
    return max(parts, key=lambda name: parts[name])


def _terms(known: Sequence[Row]) -> Table:
    columns = (
        Column("part of the step", numeric=False),
        Column("share"),
        Column("rows", minor=True),
        Column("too fast by", help="relative error of its time that explains the errors best"),
        Column("±", help="standard error", minor=True),
        Column("saved", help="points of macro |ln error| less with it corrected, in sample"),
        Column("saved, held out", help="the same, each family by a fit that did not see it"),
        Column("what the data say", numeric=False),
    )
    found = causes.terms(known)
    rows = tuple(
        (
            *(t.name, percent(t.share), str(t.rows), signed(t.theta), percent(t.error)),
            *(f"{100 * t.saved:+.2f}", f"{100 * t.held_out:+.2f}", _said(t)),
        )
        for t in found
    )
    note = (
        "Held-out errors regressed on the shares of the step, one prior for all parts, cells weighing the same. A part is"
        " worth correcting as a whole where families that the fit did not see gain by it too."
    )
    return Table(title="What the error is made of: parts of the step", columns=columns, rows=rows, note=note)


def _said(t: causes.Term) -> str:
    if abs(t.theta) < 2.0 * t.error:
        return "no bias beyond its standard error"
    slow = "fast" if t.theta > 0 else "slow"
    return f"too {slow} across families" if t.held_out > 0 else f"too {slow} in some families, not in others"


def _tests(rows: Sequence[Row], known: Sequence[Row]) -> Mapping[str, Callable[[Row], bool]]:
    measured = {row.run_id: row.measured_share or 0.0 for row in accuracy.select(rows, "benchmark", "uncalibrated")}
    count = {cell: len(members) for cell, members in accuracy.by(known, accuracy.cell).items()}

    def part(*names: str) -> Callable[[Row], float]:
        return lambda row: sum(row.breakdown.get(n, 0.0) for n in names) / (row.projected_step_seconds or 1.0)

    exposed, host, bubble = part(*COMMUNICATION), part("host_s"), part("bubble_s")
    tests: dict[str, Callable[[Row], bool]] = {
        "source leaves something out (assumed entries)": lambda row: entries(row.assumed) > 0,
        "more than four assumed entries": lambda row: entries(row.assumed) > 4,
        "exposed communication over 20 % of the step": lambda row: exposed(row) > 0.2,
        "host over 10 % of the step": lambda row: host(row) > 0.1,
        "pipeline bubble over 10 % of the step": lambda row: bubble(row) > 0.1,
        "8- or 4-bit kernels": lambda row: row.precision not in ("bf16", "fp16", "fp32", ""),
        "more than 64 GPUs": lambda row: row.gpus > 64,
        "one row in its cell": lambda row: count[accuracy.cell(row)] == 1,
        "projected out of memory, though it ran": lambda row: row.status == "out-of-memory",
        "error above 100 %": lambda row: abs(row.error or 0.0) > 1.0,
    }
    if measured:
        tests["less than half of the step on measured kernels"] = lambda row: measured.get(row.run_id, 0.0) < 0.5
    return tests


def _conditions(known: Sequence[Row], tests: Mapping[str, Callable[[Row], bool]]) -> Table:
    columns = (
        Column("rows with", numeric=False),
        Column("rows"),
        Column("cells", minor=True),
        Column("points", help="of macro MAPE that they add"),
        Column("MAPE", help="macro"),
        Column("90 %", numeric=False, help="bootstrap over cells", minor=True),
        Column("bias", minor=True),
        Column("others", help="macro MAPE of rows without it"),
        Column("worse", numeric=False, help="the others' error lies below the range"),
    )
    made = []
    for c in causes.conditions(known, tests):
        span = NONE if c.range is None else f"{percent(c.range[0])} to {percent(c.range[1])}"
        worse = NONE if c.range is None or c.others is None else ("yes" if c.others < c.range[0] else "no")
        figures = (
            str(c.rows),
            str(c.cells),
            _points(c.points),
            percent(c.mape),
            span,
            signed(c.bias),
            percent(c.others),
        )
        made.append((c.name, *figures, worse))
    note = "Held out, macro. Conditions overlap; their points do not add up. Worse: the others' error lies below the range."
    return Table(title="What the error is made of: conditions", columns=columns, rows=tuple(made), note=note)


def _points(value: float) -> str:
    return number(100 * value, 2)
