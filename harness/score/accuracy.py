"""The errors of rows: summaries, memory error, out-of-memory verdicts, intervals and refusals.

Pure functions of the frame of rows (:mod:`harness.contracts.frame`), one predictor and one fit. Signed error = projected
/ measured TGS − 1; MAPE is the mean of its absolute value. A macro figure is the mean over (model family × GPU ×
framework) cells of the mean inside each cell. Coverage = rows with an error over rows that could have one: measured
throughput and a whole configuration in the source (``eligible``). A row that is projected out of memory keeps its
projected time, and so its error; whether the verdict is right is judged apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.calibrate.weights import macro
from harness.contracts import frame
from projector.dataclass import dataclass
from projector.memory.verdict import TOO_CLOSE

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """The error of a set of rows. Fractions (0.05 = 5 %); None where no row is comparable. ``rows``: number of all rows;
    ``incomplete``: the source lacks configuration; ``eligible``: measured and complete; ``compared``: eligible with an
    error. ``worst`` is the signed error of the row ``worst_id``, ``p90`` and ``median`` are of |error|."""

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
class Coverage:
    """The share of measurements inside their interval, over rows and over cells, and the width of the intervals.
    ``width``: median of high / low − 1; ``macro_width``: median over cells of the median inside each. ``rows``: number
    of rows with an interval and a measurement."""

    rows: int
    inside: float
    macro: float
    width: float
    macro_width: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdicts:
    """Projected against measured out-of-memory, over rows with both verdicts. ``close``: of the rows too close to tell,
    how many ran and how many did not; the other fields hold the other rows."""

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
    """One reason why runs could not be projected, with the ids of these runs."""

    status: str
    reason: str
    run_ids: tuple[str, ...]


def eligible(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows that could have an error: measured, and of a complete configuration."""
    return rows[(rows["measured_tgs"].notna() & rows["complete"]).to_numpy(dtype=bool)]


def summarise(rows: pd.DataFrame) -> Summary:
    """Returns the summary of rows of one predictor and one fit."""
    complete, errors = rows["complete"].to_numpy(dtype=bool), rows["error"].to_numpy(dtype=float)
    able = complete & ~np.isnan(rows["measured_tgs"].to_numpy(dtype=float))
    known = np.flatnonzero(able & ~np.isnan(errors))
    counted: dict[str, Any] = {
        "rows": len(rows),
        "incomplete": int((~complete).sum()),
        "eligible": int(able.sum()),
        "compared": len(known),
    }
    if not len(known):
        return Summary(**counted, coverage=0.0 if able.any() else None)
    signed, cells = errors[known], rows["cell"].to_numpy()[known].tolist()
    size = np.abs(signed)
    return Summary(
        **counted,
        **_errors(rows.iloc[known], signed),
        coverage=len(known) / int(able.sum()),
        macro_bias=macro(signed, cells),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        cells=len(set(cells)),
    )


def _errors(rows: pd.DataFrame, signed: NDArray[np.float64]) -> dict[str, Any]:
    """Returns what summaries of throughput and of memory share; ``signed``: the error of each row."""
    size = np.abs(signed)
    worst = int(np.argmax(size))
    return {
        "mape": float(size.mean()),
        "macro_mape": macro(size, rows["cell"].tolist()),
        "bias": float(signed.mean()),
        "worst": float(signed[worst]),
        "worst_id": str(rows["run_id"].iloc[worst]),
    }


def coverage(rows: pd.DataFrame) -> Coverage | None:
    """Returns the coverage of the rows that have an interval and a measurement; None where none has."""
    columns = [rows[name].to_numpy(dtype=float) for name in ("interval_low", "interval_high", "measured_tgs")]
    judged = ~np.isnan(columns).any(axis=0)
    if not judged.any():
        return None
    low, high, measured = (column[judged] for column in columns)
    cells, inside, positive = rows["cell"].to_numpy()[judged], (low <= measured) & (measured <= high), low > 0.0
    width = high[positive] / low[positive] - 1.0
    by_cell = [np.median(width[cells[positive] == cell]) for cell in np.unique(cells[positive])]
    return Coverage(
        rows=len(low),
        inside=float(inside.mean()),
        macro=macro(inside, cells),
        width=float(np.median(width)) if len(width) else np.nan,
        macro_width=float(np.median(by_cell)) if by_cell else np.nan,
    )


def memory_error(rows: pd.DataFrame) -> Summary | None:
    """Returns the memory error of rows of one predictor and one fit; None where none has one. A row that is projected
    out of memory though it ran counts as well: leaving it out would hide the largest errors."""
    known = rows[rows["memory_error"].notna()]
    if known.empty:
        return None
    counted: dict[str, Any] = {"rows": len(rows), "incomplete": 0, "eligible": len(known), "compared": len(known)}
    return Summary(**counted, **_errors(known, known["memory_error"].to_numpy(dtype=float)))


def verdicts(rows: pd.DataFrame) -> Verdicts:
    """Compares projected and measured out-of-memory over rows with a memory projection and a known outcome."""
    known = rows[(rows["projected_memory_gib"].notna() & (rows["measured_status"] != "")).to_numpy(dtype=bool)]
    close = known["reason"].str.startswith(TOO_CLOSE).to_numpy(dtype=bool)
    out, failed = (known[name].to_numpy() == "out-of-memory" for name in ("status", "measured_status"))

    def ids(projected: bool, measured: bool) -> tuple[str, ...]:
        return tuple(known["run_id"][~close & (out == projected) & (failed == measured)])

    return Verdicts(
        close=(int((close & ~failed).sum()), int((close & failed).sum())),
        both_fit=len(ids(False, False)),
        both_out=len(ids(True, True)),
        false_alarm=ids(True, False),
        missed=ids(False, True),
    )


def refusals(rows: pd.DataFrame) -> list[Refusal]:
    """Returns the reasons of rows without a projected time, most frequent first; each part of ``a; b`` is a reason."""
    refused = rows[rows["projected_step_seconds"].isna()][["run_id", "status", "reason"]]
    by_reason = refused.assign(reason=refused["reason"].str.split("; ")).explode("reason").drop_duplicates()
    reasons = [
        Refusal(status=status, reason=reason, run_ids=tuple(members["run_id"]))
        for (status, reason), members in frame.parts(by_reason, ["status", "reason"])
    ]
    return sorted(reasons, key=lambda r: -len(r.run_ids))
