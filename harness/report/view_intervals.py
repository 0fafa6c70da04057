"""Tables of the prediction intervals: how often the measurement fell inside, and how wide they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.calibrate import intervals
from harness.contracts.results import Row
from harness.report.table import NONE, Column, Table, percent
from harness.score import accuracy

__all__ = ["of_predictor", "span"]

KINDS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("all", lambda _: ""),
    ("GPU", lambda row: row.gpu),
    ("family", lambda row: row.family),
    ("framework", lambda row: row.framework),
)
GOAL = (0.85, 0.95)


def of_predictor(rows: Sequence[Row], name: str) -> Table:
    """Coverage and width of the held-out intervals of one predictor: overall, by GPU, family and framework."""
    columns = (
        Column("by", numeric=False),
        Column("of", numeric=False),
        Column("rows"),
        Column("inside"),
        Column("inside, macro", help="each (family × GPU × framework) cell weighing the same"),
        Column("width", help="median of high / low − 1"),
        Column("width of cells", help="median over cells", minor=True),
        Column(f"{percent(GOAL[0], 0)} to {percent(GOAL[1], 0)}", numeric=False),
    )
    held = accuracy.select(rows, name, "heldout")
    made = []
    for kind, key in KINDS:
        for value, members in sorted(accuracy.by(held, key).items()):
            found = intervals.coverage(members)
            if found is None:
                continue
            where = "below" if found.macro < GOAL[0] else "above" if found.macro > GOAL[1] else "yes"
            figures = (str(found.rows), percent(found.inside), percent(found.macro), percent(found.width, 0))
            made.append((kind, value or NONE, *figures, percent(found.macro_width, 0), where))
    note = (
        "Conformal 90 % intervals of held-out tokens/s/GPU: from the residuals of other model families, by fits that saw"
        " none of them. Few rows say little: ten rows of true coverage 90 % show 70 to 100 %."
    )
    return Table(title=f"{name}: 90 % intervals", columns=columns, rows=tuple(made), note=note)


def span(row: Row) -> str:
    """The interval of a row as text, tokens/s/GPU."""
    if row.interval_low is None or row.interval_high is None:
        return NONE
    return f"{row.interval_low:.0f} to {row.interval_high:.0f}"
