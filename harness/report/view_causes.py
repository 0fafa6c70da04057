"""Tabulates the components of the error (:mod:`harness.score.causes`): every line is computed, none is an opinion."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Any

from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.contracts.runs import BREAKDOWN
from harness.report.spec import PROPERTIES, tabled
from harness.report.table import Table
from harness.score import causes
from harness.score.figures import Figures
from projector.io.table import percent0

if TYPE_CHECKING:
    import pandas as pd


def entries(assumed: str) -> list[str]:
    """Returns the entries of the column ``assumed``, one for each field that was filled in."""
    return [word for word in assumed.split("; ") if word]


_MOST = 15


def of_predictor(evaluation: Evaluation, name: str) -> list[Table]:
    """Returns the tables of causes over the held-out rows of ``name`` with a whole configuration."""
    known = Figures.of(evaluation.once, name).compared
    if known.empty:
        return []
    tests = _tests(evaluation.once, known)
    worse = lambda c: None if c.range is None or isnan(c.others) else c.others < c.range[0]  # noqa: E731
    tables = [
        _cells(known),
        _biases(known),
        tabled("splits", frame.lines(causes.per_key(known, "gpu")), mostly=_mostly),
        tabled("parts", frame.lines(causes.terms(known)), said=_said),
        tabled("conditions", frame.lines(causes.conditions(known, tests)), worse=worse),
    ]
    return [table for table in tables if table.rows]


def _cells(known: pd.DataFrame) -> Table:
    cells = causes.cells(known)
    largest = cells["largest_part"] + " " + cells["largest_share"].map(percent0)
    shown = frame.lines(cells.assign(so_far=cells["points"].cumsum(), largest=largest)[:_MOST])
    points = f"{100 * cells['points'].sum():.2f}"
    return tabled("cells", shown, shown=min(_MOST, len(cells)), points=points, cells=len(cells))


def _biases(known: pd.DataFrame) -> Table:
    errors = causes.ablations(known)
    now, something = errors["error"].iloc[0], errors["name"] != "nothing"
    labels = ("the bias of every " + errors["name"]).where(something, "nothing")
    less = ((now - errors["error"]) / now).where(something)
    return tabled("biases", frame.lines(errors.assign(known=labels, less=less)))


def _mostly(s: Any) -> str:
    parts = {
        "bias of the GPU": s.error - s.without_bias,
        "biases of its cells": s.without_bias - s.without_cells if s.cells > 1 else 0.0,
        "scatter inside cells": s.without_cells,
    }
    return max(parts, key=lambda name: parts[name])


def _said(t: Any) -> str:
    if abs(t.theta) < 2.0 * t.error:
        return "no bias beyond its standard error"
    slow = "fast" if t.theta > 0 else "slow"
    return f"too {slow} across families" if t.held_out > 0 else f"too {slow} in some families, not in others"


def _tests(rows: pd.DataFrame, known: pd.DataFrame) -> dict[str, Any]:
    """Returns for each of :data:`PROPERTIES` which of the ``known`` rows have it."""
    measured = frame.part(rows, predictor="benchmark", fit="uncalibrated").set_index("run_id")["measured_share"]
    wide = known.fillna(dict.fromkeys(BREAKDOWN, 0.0)).assign(
        entries=known["assumed"].map(entries).map(len),
        alike=known.groupby("cell")["run_id"].transform("size"),
        covered=known["run_id"].map(measured).fillna(0.0) if len(measured) else 1.0,
    )
    return {words: wide.eval(expression, engine="python") for words, expression in PROPERTIES.items()}
