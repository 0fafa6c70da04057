"""Single rows as a reader wants them: measured, projected, expected, the parts of the step; and cases that nobody
measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from harness.contracts.results import Evaluation, Row, unique
from harness.contracts.runs import BREAKDOWN
from harness.report.spec import tabled
from harness.report.table import Table
from harness.score import accuracy
from projector.dataclass import dataclass
from projector.io.table import factor, rate

#: Most runs for which every one is shown.
FEW = 20
_BAR = 12  # characters: 80 columns hold the table with names of up to 24
#: The letter of each part of the step.
LETTERS = dict(zip(BREAKDOWN, "CHBtecpdO.", strict=True))
_WORDS = ("compute", "host", "bubble", "TP", "EP", "CP", "PP", "DP", "optimizer", "other")


@dataclass(frozen=True, slots=True)
class _Expected:
    """The expected tokens/s/GPU; ``half``: the half width of the interval, a share."""

    middle: float | None = None
    half: float | None = None

    def __str__(self) -> str:
        return rate(self.middle) + ("" if self.half is None else f" {factor(math.log1p(self.half))}")

    def holds(self, measured: float | None) -> bool | None:
        if measured is None or self.middle is None or self.half is None:
            return None
        return self.middle / (1 + self.half) <= measured <= self.middle * (1 + self.half)


def bar(row: Row) -> str:
    """Returns the exposed parts of a step, one letter for each twelfth of it; empty where the predictor gives no parts."""
    parts = {name: seconds for name, seconds in row.breakdown.items() if seconds > 0}
    total = math.fsum(parts.values())
    if not total:
        return ""
    share = {name: _BAR * seconds / total for name, seconds in parts.items()}
    whole = {name: int(letters) for name, letters in share.items()}
    rest = sorted(share, key=lambda name: whole[name] - share[name])[: _BAR - sum(whole.values())]
    return "".join(LETTERS[name] * (whole[name] + (name in rest)) for name in BREAKDOWN if name in share)


def few(evaluation: Evaluation, name: str) -> Table:
    """Returns every row of a predictor, measured or not; no rows where there are more than :data:`FEW`."""
    rows = evaluation.unique_rows
    chosen = accuracy.select(rows, name, "uncalibrated")
    chosen = chosen if len(chosen) <= FEW else []
    expected, lines = _expected(rows, name), []
    for row in chosen:
        expectation = expected.get(row.run_id, _Expected())
        error = expectation.middle / row.measured_tgs - 1.0 if expectation.middle and row.measured_tgs else None
        cells = {"inside": expectation.holds(row.measured_tgs), "error": error, "step": bar(row) or row.status}
        lines.append({"row": row, "expected": expectation, **cells})
    return tabled("few", lines, name=name, legend=_legend(chosen))


#: The title of a table of figures that their own sources doubt.
_DOUBTED = "Doubted by their own sources"


def doubted(items: Iterable[object], title: str = _DOUBTED, *, rates: bool = False) -> Table:
    """Returns rows or looks that count nowhere, with their error (before any correction) and the doubt; ``rates``: the
    measured and the projected rate, too."""
    return tabled("doubted", items, title=title, rates=rates)


def doubted_rows(evaluation: Evaluation, name: str) -> Table:
    """Returns the table of a predictor's doubted rows."""
    chosen = accuracy.select(unique(evaluation.doubted), name, "uncalibrated")
    return doubted(chosen, f"{name}: {_DOUBTED[0].lower()}{_DOUBTED[1:]}", rates=True)


def unmeasured_rows(evaluation: Evaluation, name: str) -> list[Row]:
    """Returns the rows of the predictor (uncalibrated) that have a projection and no measurement of anything: cases."""
    return [
        row
        for row in accuracy.select(evaluation.unique_rows, name, "uncalibrated")
        if row.projected_tgs is not None
        and row.measured_tgs is None
        and row.measured_memory_gib is None
        and evaluation.facts[row.run_id].measured_status != "out-of-memory"
    ]


def unmeasured(evaluation: Evaluation, name: str) -> Table:
    """Returns the table of cases with their projection."""
    chosen = unmeasured_rows(evaluation, name)
    expected = _expected(evaluation.unique_rows, name)
    lines = [{"row": row, "expected": expected.get(row.run_id, _Expected()), "bar": bar(row)} for row in chosen]
    return tabled("unmeasured", lines, name=name, legend=_legend(chosen))


def _expected(rows: Sequence[Row], name: str) -> Mapping[str, _Expected]:
    """Returns by run the expectation in its held-out row."""
    return {row.run_id: _expectation(row) for row in accuracy.select(rows, name, "heldout")}


def _expectation(row: Row) -> _Expected:
    if row.interval_high is None or not row.projected_tgs:
        return _Expected(row.projected_tgs)
    return _Expected(row.projected_tgs, row.interval_high / row.projected_tgs - 1)


def _legend(rows: Sequence[Row]) -> str:
    shown = {letter for row in rows for letter in bar(row)}
    parts = ", ".join(
        f"{letter} {words}" for letter, words in zip(LETTERS.values(), _WORDS, strict=True) if letter in shown
    )
    return f"Step: {parts}; a letter is a twelfth of the projected step, exposed." if parts else ""
