"""Tables of the prediction intervals: how often the measurement fell inside, and how wide they are."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING, Any

from harness.report.spec import GROUPS, Spec, table
from harness.report.table import NONE, Column, Table

if TYPE_CHECKING:
    import pandas as pd

_SPEC = Spec(
    title="{predictor}: 90 % intervals",
    by=(),
    metrics=("intervals", "inside", "inside_macro", "width", "width_cells?", "inside_goal"),
    needs="intervals",
)
_NOTE = (
    "Conformal 90 % intervals of held-out tokens/s/GPU: from the residuals of other sources, by fits that saw"
    " none of them. Few rows say little: ten rows of true coverage 90 % show 70 to 100 %."
)


def of_predictor(rows: pd.DataFrame, name: str) -> Table:
    """Coverage and width of the held-out intervals of one predictor: overall, by GPU, family and framework."""
    whole = table(rows, _SPEC, name)
    lines = [("all", NONE, *line) for line in whole.rows]
    for key in ("gpu", "family", "framework"):
        lines += [(GROUPS[key], *line) for line in table(rows, replace(_SPEC, by=(key,)), name).rows]
    columns = (Column("by", numeric=False), Column("of", numeric=False), *whole.columns)
    return replace(whole, columns=columns, rows=tuple(lines), note=_NOTE)


def span(row: Any) -> str | None:
    """The interval of a line of the frame as text, tokens/s/GPU; None where there is none."""
    return None if isnan(row.interval_low) else f"{row.interval_low:.0f} to {row.interval_high:.0f}"
