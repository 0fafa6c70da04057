"""What the rows say of error: summaries by any column, macro averages, memory error and the out-of-memory verdicts.

Pure functions of rows. Signed error = projected / measured TGS − 1; MAPE is the mean of its absolute value. A macro
figure is the mean over (model family × GPU × framework) cells of the mean inside each cell. Coverage = rows with an
error over rows that could have one: measured throughput and a whole configuration in the source (``eligible``). A row
that is projected out of memory keeps its projected time, and so its error; whether the verdict is right is judged
apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from harness.contracts.results import Row, RunFacts
from projector.memory.verdict import TOO_CLOSE

__all__ = [
    "MemorySummary",
    "Refusal",
    "Summary",
    "Verdicts",
    "by",
    "cell",
    "comparable",
    "macro",
    "memory",
    "memory_error",
    "refusals",
    "select",
    "summarise",
    "verdicts",
]

Facts = Mapping[str, RunFacts]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Error of a set of rows. Fractions (0.05 = 5 %); None where no row is comparable.

    ``rows``: all of them; ``incomplete``: the source lacks configuration; ``eligible``: measured and complete;
    ``compared``: eligible with an error. ``worst`` is the signed error of the row ``worst_id``, ``p90`` and
    ``median`` are of |error|.
    """

    rows: int
    incomplete: int
    eligible: int
    compared: int
    coverage: float | None = None
    mape: float | None = None
    macro_mape: float | None = None
    bias: float | None = None
    macro_bias: float | None = None
    median: float | None = None
    p90: float | None = None
    worst: float | None = None
    worst_id: str = ""
    cells: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySummary:
    """Memory error of the rows of one ``kind`` (``allocated``, ``reserved``, ``device``, ``not stated``)."""

    kind: str
    compared: int
    mape: float
    macro_mape: float
    bias: float
    worst: float
    worst_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdicts:
    """Out-of-memory, predicted against measured, over rows with both verdicts. ``close``: of the rows that are too close
    to tell, how many ran and how many did not; the other fields have the rest."""

    close: tuple[int, int] = (0, 0)
    both_fit: int = 0
    both_out: int = 0
    false_alarm: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.close) + self.both_fit + self.both_out + len(self.false_alarm) + len(self.missed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """One reason why runs could not be projected, with the runs it hit."""

    status: str
    reason: str
    run_ids: tuple[str, ...]


def select(rows: Iterable[Row], predictor: str, fit: str) -> list[Row]:
    """The rows of one predictor and fit, in order."""
    return [r for r in rows if r.predictor == predictor and r.fit == fit]


def comparable(rows: Iterable[Row]) -> list[Row]:
    return [r for r in rows if r.error is not None]


def cell(row: Row) -> tuple[str, str, str]:
    """What a macro average weighs as one."""
    return (row.family, row.gpu, row.framework)


def macro(values: Iterable[tuple[Hashable, float]]) -> float:
    """Mean over cells of the mean inside each; ``values`` are (cell, value) pairs, at least one."""
    cells: dict[Hashable, list[float]] = defaultdict(list)
    for key, value in values:
        cells[key].append(value)
    return math.fsum(math.fsum(v) / len(v) for v in cells.values()) / len(cells)


def summarise(rows: Sequence[Row], facts: Facts) -> Summary:
    """The summary of rows of one predictor and one fit."""
    incomplete = sum(not facts[r.run_id].complete for r in rows)
    eligible = [r for r in rows if r.measured_tgs is not None and facts[r.run_id].complete]
    compared = [(r, r.error) for r in eligible if r.error is not None]
    counted = Summary(rows=len(rows), incomplete=incomplete, eligible=len(eligible), compared=len(compared))
    if not compared:
        return replace(counted, coverage=0.0 if eligible else None)
    signed = np.array([e for _, e in compared])
    size = np.abs(signed)
    worst = int(np.argmax(size))
    return replace(
        counted,
        coverage=len(compared) / len(eligible),
        mape=float(size.mean()),
        macro_mape=macro((cell(r), abs(e)) for r, e in compared),
        bias=float(signed.mean()),
        macro_bias=macro((cell(r), e) for r, e in compared),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        worst=float(signed[worst]),
        worst_id=compared[worst][0].run_id,
        cells=len({cell(r) for r, _ in compared}),
    )


def by(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Rows by key, keys in order of first appearance."""
    grouped: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        grouped[key(row)].append(row)
    return dict(grouped)


def memory(rows: Iterable[Row], facts: Facts) -> list[MemorySummary]:
    """Memory error by what the source measured, most rows first."""
    known = [r for r in rows if r.memory_error is not None]
    made = [_memory(kind, group) for kind, group in by(known, lambda r: facts[r.run_id].memory_kind or "").items()]
    return sorted(made, key=lambda m: -m.compared)


def memory_error(rows: Iterable[Row]) -> MemorySummary | None:
    """Memory error of rows of one predictor and one fit, whatever their source counts; None where none has one.

    A row that is projected out of memory though it ran counts as well: leaving it out would hide the largest errors.
    """
    known = [r for r in rows if r.memory_error is not None]
    return _memory("all", known) if known else None


def _memory(kind: str, rows: Sequence[Row]) -> MemorySummary:
    pairs = [(r, r.memory_error) for r in rows if r.memory_error is not None]
    signed = np.array([e for _, e in pairs])
    worst = int(np.argmax(np.abs(signed)))
    return MemorySummary(
        kind=kind or "not stated",
        compared=len(pairs),
        mape=float(np.abs(signed).mean()),
        macro_mape=macro((cell(r), abs(e)) for r, e in pairs),
        bias=float(signed.mean()),
        worst=float(signed[worst]),
        worst_id=pairs[worst][0].run_id,
    )


def verdicts(rows: Iterable[Row], facts: Facts) -> Verdicts:
    """Predicted against measured out-of-memory; a row without a memory projection or a known outcome is not judged."""
    found: dict[tuple[bool, bool], list[str]] = defaultdict(list)
    close = [0, 0]
    for r in rows:
        measured = facts[r.run_id].measured_status
        if r.projected_memory_gib is None or not measured:
            continue
        if r.reason.startswith(TOO_CLOSE):
            close[measured == "out-of-memory"] += 1
        else:
            found[r.status == "out-of-memory", measured == "out-of-memory"].append(r.run_id)
    return Verdicts(
        close=(close[0], close[1]),
        both_fit=len(found[False, False]),
        both_out=len(found[True, True]),
        false_alarm=tuple(found[True, False]),
        missed=tuple(found[False, True]),
    )


def refusals(rows: Iterable[Row]) -> list[Refusal]:
    """Rows without a projected time by (status, reason), most frequent first; each part of ``a; b`` is a reason."""
    ids: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        if row.projected_step_seconds is None:
            for reason in dict.fromkeys(row.reason.split("; ")):
                ids[row.status, reason].append(row.run_id)
    made = [Refusal(status=status, reason=reason, run_ids=tuple(found)) for (status, reason), found in ids.items()]
    return sorted(made, key=lambda r: -len(r.run_ids))
