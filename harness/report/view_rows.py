"""Single rows as a reader wants them: measured, projected, expected, the parts of the step; and cases that nobody
measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from harness.contracts import frame
from harness.contracts.results import Evaluation
from harness.contracts.runs import BREAKDOWN
from harness.report.spec import tabled
from harness.report.table import Table
from projector.io.table import factor, rate

if TYPE_CHECKING:
    import pandas as pd

#: Most runs for which every one is shown.
FEW = 20
_BAR = 12  # characters: 80 columns hold the table with names of up to 24
#: The letter of each part of the step.
LETTERS = dict(zip(BREAKDOWN, "CHBtecpdO.", strict=True))
_WORDS = ("compute", "host", "bubble", "TP", "EP", "CP", "PP", "DP", "optimizer", "other")


def bar(row: Any) -> str:
    """Returns the exposed parts of a step, one letter for each twelfth of it; empty where the predictor gives no parts."""
    parts = {name: seconds for name in BREAKDOWN if (seconds := getattr(row, name)) > 0}
    total = math.fsum(parts.values())
    if not total:
        return ""
    share = {name: _BAR * seconds / total for name, seconds in parts.items()}
    whole = {name: int(letters) for name, letters in share.items()}
    rest = sorted(share, key=lambda name: whole[name] - share[name])[: _BAR - sum(whole.values())]
    return "".join(LETTERS[name] * (whole[name] + (name in rest)) for name in BREAKDOWN if name in share)


def few(evaluation: Evaluation, name: str) -> Table:
    """Returns every row of a predictor, measured or not; no rows where there are more than :data:`FEW`."""
    rows = beside_expected(evaluation.once, name)
    lines = list(frame.lines(rows)) if len(rows) <= FEW else []
    step = lambda row: bar(row) or row.status  # noqa: E731
    return tabled("few", lines, name=name, legend=_legend(lines), expected=_expected, inside=_inside, step=step)


#: The title of a table of figures that their own sources doubt.
_DOUBTED = "Doubted by their own sources"


def doubted(items: Iterable[object], title: str = _DOUBTED, *, rates: bool = False) -> Table:
    """Returns rows or looks that count nowhere, with their error (before any correction) and the doubt; ``rates``: the
    measured and the projected rate, too."""
    return tabled("doubted", items, title=title, rates=rates)


def doubted_rows(evaluation: Evaluation, name: str) -> Table:
    """Returns the table of a predictor's doubted rows."""
    rows = frame.once(frame.of(evaluation.doubted, evaluation.facts))
    title = f"{name}: {_DOUBTED[0].lower()}{_DOUBTED[1:]}"
    return doubted(frame.lines(frame.part(rows, predictor=name, fit="uncalibrated")), title, rates=True)


def unmeasured_rows(evaluation: Evaluation, name: str) -> list[Any]:
    """Returns the rows of the predictor (uncalibrated) that have a projection and no measurement of anything: cases."""
    rows = beside_expected(evaluation.once, name)
    measured = rows[["measured_tgs", "measured_memory_gib"]].notna().any(axis=1)
    case = rows["projected_tgs"].notna() & ~measured & (rows["measured_status"] != "out-of-memory")
    return list(frame.lines(rows[case]))


def unmeasured(evaluation: Evaluation, name: str) -> Table:
    """Returns the table of cases with their projection."""
    lines = unmeasured_rows(evaluation, name)
    return tabled("unmeasured", lines, name=name, legend=_legend(lines), expected=_expected, bar=bar)


def beside_expected(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Returns the uncalibrated rows of a predictor, beside each (``held_…``) what its held-out row expects."""
    plain, held = (frame.part(rows, predictor=name, fit=fit) for fit in ("uncalibrated", "heldout"))
    figures = held.set_index("run_id")[["projected_tgs", "interval_low", "interval_high", "error"]]
    return plain.join(figures.add_prefix("held_"), on="run_id")


def _expected(row: Any) -> str | None:
    """Returns the expected tokens/s/GPU, and the factor to either side that its interval reaches."""
    if math.isnan(row.held_projected_tgs):
        return None
    reach = row.held_interval_high / row.held_projected_tgs
    return rate(row.held_projected_tgs) + ("" if math.isnan(reach) else f" {factor(math.log(reach))}")


def _inside(row: Any) -> bool | None:
    """Tells whether the measurement lies in the interval; None where one of the two is missing."""
    missing = math.isnan(row.measured_tgs) or math.isnan(row.held_interval_high)
    return None if missing else row.held_interval_low <= row.measured_tgs <= row.held_interval_high


def _legend(rows: Sequence[Any]) -> str:
    shown = {letter for row in rows for letter in bar(row)}
    parts = ", ".join(
        f"{letter} {words}" for letter, words in zip(LETTERS.values(), _WORDS, strict=True) if letter in shown
    )
    return f"Step: {parts}; a letter is a twelfth of the projected step, exposed." if parts else ""
