"""Tables of what the error is made of (:mod:`harness.score.causes`): every line is computed, none is an opinion."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import TYPE_CHECKING, Any

from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.report.spec import percent0, signed0, span, stated, yes_no
from harness.report.table import NONE, Table, figure, listed, number, percent, signed, text
from harness.score import accuracy, causes

if TYPE_CHECKING:
    import pandas as pd


def entries(assumed: str) -> list[str]:
    """What the column lists, one entry for each field that was filled in."""
    return [word for word in assumed.split("; ") if word]


_MOST = 15
_LN = "ln(projected / measured TGS): +10 % is 10 % too fast."
_TITLE = "What the error is made of: "


def of_predictor(evaluation: Evaluation, name: str) -> list[Table]:
    """The held-out rows of ``name`` with a whole configuration, split."""
    held = accuracy.eligible(frame.part(evaluation.once, predictor=name, fit="heldout"))
    known = held[held["error"].notna()]
    if known.empty:
        return []
    tests = _tests(evaluation.once, known)
    made = [_cells(known), _ablations(known), _splits(known), _terms(known), _conditions(known, tests)]
    return [table for table in made if table.rows]


def _cells(known: pd.DataFrame) -> Table:
    found = causes.cells(known)
    found["so_far"] = found["points"].cumsum()
    made = (
        text("family", "family", stated),
        text("GPU", "gpu"),
        text("framework", "framework", stated),
        figure("rows", "rows"),
        figure("points", "points", _points, "of macro MAPE"),
        figure("so far", "so_far", _points, "points of this line and those above", minor=1),
        figure("MAPE", "mape", percent),
        figure("bias", "bias", signed0, _LN),
        figure("scatter", "scatter", percent0, "standard deviation inside the cell", minor=1),
        figure("family's", "of_family", signed0, "bias of the family's other cells", minor=1),
        figure("GPU's", "of_gpu", signed0, "bias of the GPU's other cells", minor=1),
        figure("framework's", "of_framework", signed0, "bias of the framework's others", minor=1),
        text("largest part", lambda c: f"{c.largest_part} {percent(c.largest_share, 0)}", minor=1),
        text("where to look", "fault", help="which kin is off the same way by at least half as much"),
    )
    note = (
        f"The {min(_MOST, len(found))} cells that add most to {_points(found['points'].sum())} points of held-out macro MAPE"
        f" in {len(found)} cells. Bias and scatter: {_LN} Where to look: the kin whose other cells are off the same way by"
        " at least half as much; scatter where rows inside differ by more than their mean is off."
    )
    return listed(f"{_TITLE}cells", frame.lines(found[:_MOST]), made, note)


def _ablations(known: pd.DataFrame) -> Table:
    found = causes.ablations(known)
    now = found["error"].iloc[0]
    made = (
        text("known in advance", lambda a: a.name if a.name == "nothing" else f"the bias of every {a.name}"),
        figure("values", "values"),
        figure("|ln| left", "error", percent),
        figure("less", lambda a: NONE if a.name == "nothing" else percent((now - a.error) / now if now else None, 0)),
    )
    note = (
        "Macro mean |ln error| once the median of every GPU, framework, … is taken out, in sample: the most that"
        " calibrating by it could ever give. What the last line leaves is scatter between rows of one cell."
    )
    return listed(f"{_TITLE}biases", frame.lines(found), made, note)


def _splits(known: pd.DataFrame) -> Table:
    made = (
        text("GPU", "key", stated),
        figure("rows", "rows"),
        figure("cells", "cells"),
        figure("bias", "bias", signed, _LN),
        figure("|ln error|", "error", percent),
        figure("without the GPU's bias", "without_bias", percent),
        figure("without the cells' biases", "without_cells", percent, minor=1),
        text("mostly", _mostly),
    )
    note = "Held out, macro. Mostly: where the larger part of the error would go."
    return listed(f"{_TITLE}bias and scatter by GPU", frame.lines(causes.per_key(known, "gpu")), made, note)


def _mostly(s: Any) -> str:
    parts = {
        "bias of the GPU": s.error - s.without_bias,
        "biases of its cells": s.without_bias - s.without_cells if s.cells > 1 else 0.0,
        "scatter inside cells": s.without_cells,
    }
    return max(parts, key=lambda name: parts[name])


def _terms(known: pd.DataFrame) -> Table:
    made = (
        text("part of the step", "name"),
        figure("share", "share", percent),
        figure("rows", "rows", minor=1),
        figure("too fast by", "theta", signed, "relative error of its time that explains the errors best"),
        figure("±", "error", percent, "standard error", minor=1),
        figure("saved", "saved", _saved, "points of macro |ln error| less with it corrected, in sample"),
        figure("saved, held out", "held_out", _saved, "the same, each family by a fit that did not see it"),
        text("what the data say", _said),
    )
    note = (
        "Held-out errors regressed on the shares of the step, one prior for all parts, cells weighing the same. A part is"
        " worth correcting as a whole where families that the fit did not see gain by it too."
    )
    return listed(f"{_TITLE}parts of the step", frame.lines(causes.terms(known)), made, note)


def _said(t: Any) -> str:
    if abs(t.theta) < 2.0 * t.error:
        return "no bias beyond its standard error"
    slow = "fast" if t.theta > 0 else "slow"
    return f"too {slow} across families" if t.held_out > 0 else f"too {slow} in some families, not in others"


def _tests(rows: pd.DataFrame, known: pd.DataFrame) -> Mapping[str, pd.Series[bool]]:
    def share(*names: str) -> pd.Series[float]:
        return known[list(names)].sum(axis=1) / known["projected_step_seconds"]

    assumed = known["assumed"].map(entries).map(len)
    tests = {
        "source leaves something out (assumed entries)": assumed > 0,
        "more than four assumed entries": assumed > 4,
        "exposed communication over 20 % of the step": share("tp_s", "ep_s", "cp_s", "pp_s", "dp_s") > 0.2,
        "host over 10 % of the step": share("host_s") > 0.1,
        "pipeline bubble over 10 % of the step": share("bubble_s") > 0.1,
        "8- or 4-bit kernels": ~known["precision"].isin(["bf16", "fp16", "fp32", ""]),
        "more than 64 GPUs": known["gpus"] > 64,
        "one row in its cell": known.groupby("cell")["run_id"].transform("size") == 1,
        "projected out of memory, though it ran": known["status"] == "out-of-memory",
        "error above 100 %": known["error"].abs() > 1.0,
    }
    measured = frame.part(rows, predictor="benchmark", fit="uncalibrated").set_index("run_id")["measured_share"]
    if len(measured):
        covered = known["run_id"].map(measured).fillna(0.0)
        tests["less than half of the step on measured kernels"] = covered < 0.5
    return tests


def _conditions(known: pd.DataFrame, tests: Mapping[str, pd.Series[bool]]) -> Table:
    made = (
        text("rows with", "name"),
        figure("rows", "rows"),
        figure("cells", "cells", minor=1),
        figure("points", "points", _points, "of macro MAPE that they add"),
        figure("MAPE", "mape", percent, "macro"),
        text("90 %", "range", span, "bootstrap over cells", minor=1),
        figure("bias", "bias", signed, minor=1),
        figure("others", "others", percent, "macro MAPE of rows without it"),
        text("worse", _worse, yes_no, "the others' error lies below the range"),
    )
    note = "Held out, macro. Conditions overlap; their points do not add up. Worse: the others' error lies below the range."
    return listed(f"{_TITLE}conditions", frame.lines(causes.conditions(known, tests)), made, note)


def _worse(c: Any) -> bool | None:
    return None if c.range is None or isnan(c.others) else c.others < c.range[0]


def _points(value: float) -> str:
    return number(100 * value, 2)


def _saved(value: float) -> str:
    return f"{100 * value:+.2f}"
