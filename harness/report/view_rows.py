"""Single rows as a reader wants them: measured, projected, expected, where the step goes; and what nobody measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from harness.contracts.results import Evaluation, Row, unique
from harness.contracts.runs import BREAKDOWN
from harness.report.table import NONE, Cell, Column, Table, figure, listed, number, signed, text
from harness.score import accuracy
from projector.dataclass import dataclass
from projector.io.table import factor, rate

#: Runs up to which every one of them is shown.
FEW = 20
_BAR = 12  # characters: 80 columns hold the table with names of up to 24
#: By part of the step.
LETTERS = dict(zip(BREAKDOWN, "CHBtecpdO.", strict=True))
_WORDS = ("compute", "host", "bubble", "TP", "EP", "CP", "PP", "DP", "optimizer", "other")
_HEAD = (
    Column("run", numeric=False),
    Column("GPU", numeric=False, minor=4),
    Column("GPUs", minor=3),
    Column("measured", help="tokens/s/GPU"),
    Column("projected", help="tokens/s/GPU, nothing fitted"),
    Column("expected", help="tokens/s/GPU, held out, and how far its 90 % interval goes to either side"),
)
_HELD = "Tokens/s/GPU. Expected: by measured runs of other sources; ×: its 90 % interval, up and down."


@dataclass(frozen=True, slots=True)
class _Expected:
    """Tokens/s/GPU; ``half``: of the interval, a share."""

    middle: float | None = None
    half: float | None = None

    def __str__(self) -> str:
        return rate(self.middle) + ("" if self.half is None else f" {factor(math.log1p(self.half))}")

    def holds(self, measured: float | None) -> str:
        if measured is None or self.middle is None or self.half is None:
            return NONE
        return "yes" if self.middle / (1 + self.half) <= measured <= self.middle * (1 + self.half) else "no"


def bar(row: Row) -> str:
    """The exposed parts of a step, one letter for each twelfth of it; empty where the predictor gives no parts."""
    parts = {name: seconds for name, seconds in row.breakdown.items() if seconds > 0}
    total = math.fsum(parts.values())
    if not total:
        return ""
    share = {name: _BAR * seconds / total for name, seconds in parts.items()}
    whole = {name: int(each) for name, each in share.items()}
    rest = sorted(share, key=lambda name: whole[name] - share[name])[: _BAR - sum(whole.values())]
    return "".join(LETTERS[name] * (whole[name] + (name in rest)) for name in BREAKDOWN if name in share)


def few(evaluation: Evaluation, name: str) -> Table:
    """Every row of a predictor, measured or not; no rows where there are more than :data:`FEW`."""
    rows = evaluation.unique_rows
    chosen = accuracy.select(rows, name, "uncalibrated")
    chosen = chosen if len(chosen) <= FEW else []
    expected = _expected(rows, name)
    columns = (
        *_HEAD,
        Column("inside", numeric=False, help="whether the measurement lies in the interval"),
        Column("error", help="of expected", minor=2),
        Column("step", numeric=False, help="where the projected step goes", minor=1),
    )
    made = []
    for row in chosen:
        found = expected.get(row.run_id, _Expected())
        error = found.middle / row.measured_tgs - 1.0 if found.middle and row.measured_tgs else None
        made.append((*_figures(row, found), found.holds(row.measured_tgs), signed(error), bar(row) or row.status))
    return Table(
        title=f"{name}: run by run", columns=columns, rows=tuple(made), note=f"{_HELD} {_legend(chosen)}".strip()
    )


#: Title and columns of a table of figures that their own sources doubt; ``error``: before any correction.
_DOUBTED = "Doubted by their own sources"
_DOUBT = (text("run", "run_id"), figure("error", "error", signed), text("doubt", "doubt"))


def doubted(items: Iterable[object], title: str = _DOUBTED, further: Sequence[Cell] = ()) -> Table:
    """Rows or looks that count nowhere, with their error and why."""
    run, error, doubt = _DOUBT
    note = "In the words of the source; fitted on nowhere, and part of no other figure."
    return listed(title, items, (run, *further, error, doubt), note)


def doubted_rows(evaluation: Evaluation, name: str) -> Table:
    """Those of a predictor."""
    further = (figure("measured", "measured_tgs", rate), figure("projected", "projected_tgs", rate))
    chosen = accuracy.select(unique(evaluation.doubted), name, "uncalibrated")
    return doubted(chosen, f"{name}: {_DOUBTED[0].lower()}{_DOUBTED[1:]}", further)


def unmeasured_rows(evaluation: Evaluation, name: str) -> list[Row]:
    """Rows of the predictor (uncalibrated) that have a projection and no measurement of anything: cases."""
    return [
        row
        for row in accuracy.select(evaluation.unique_rows, name, "uncalibrated")
        if row.projected_tgs is not None
        and row.measured_tgs is None
        and row.measured_memory_gib is None
        and evaluation.facts[row.run_id].measured_status != "out-of-memory"
    ]


def unmeasured(evaluation: Evaluation, name: str) -> Table:
    """Cases with their projection."""
    chosen = unmeasured_rows(evaluation, name)
    expected = _expected(evaluation.unique_rows, name)
    columns = (
        *(column for column in _HEAD if column.title != "measured"),
        Column("step s", minor=2),
        Column("GiB", help="projected peak", minor=2),
        Column("status", numeric=False),
        Column("step", numeric=False, help="where the projected step goes", minor=1),
    )
    made = []
    for row in chosen:
        run, gpu, gpus, _, *figures = _figures(row, expected.get(row.run_id, _Expected()))
        sizes = (number(row.projected_step_seconds, 3), number(row.projected_memory_gib, 1))
        made.append((run, gpu, gpus, *figures, *sizes, row.status, bar(row)))
    title = f"{name}: projected, nothing measured"
    note = f"{_HELD} {_legend(chosen)}".strip() if chosen else ""
    return Table(title=title, columns=columns, rows=tuple(made), note=note)


def _expected(rows: Sequence[Row], name: str) -> Mapping[str, _Expected]:
    """By run: what its held-out row says."""
    return {row.run_id: _of_row(row) for row in accuracy.select(rows, name, "heldout")}


def _of_row(row: Row) -> _Expected:
    if row.interval_high is None or not row.projected_tgs:
        return _Expected(row.projected_tgs)
    return _Expected(row.projected_tgs, row.interval_high / row.projected_tgs - 1)


def _figures(row: Row, expected: _Expected) -> tuple[str, ...]:
    places = (row.run_id, row.gpu, str(row.gpus))
    return (*places, rate(row.measured_tgs), rate(row.projected_tgs), str(expected))


def _legend(rows: Sequence[Row]) -> str:
    shown = {letter for row in rows for letter in bar(row)}
    said = ", ".join(
        f"{letter} {words}" for letter, words in zip(LETTERS.values(), _WORDS, strict=True) if letter in shown
    )
    return f"Step: {said}; a letter is a twelfth of the projected step, exposed." if said else ""
