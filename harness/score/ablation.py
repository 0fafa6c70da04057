"""What a mechanism is worth: errors of rows with everything on against those with it off, source by source.

On raw projections (as they come, corrected by nothing). A source weighs as one, whatever its number of rows. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from harness.score import resample
from harness.score.accuracy import eligible
from harness.score.ranking import group_rankings, summary
from harness.score.whatif import gains
from projector.dataclass import dataclass

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
#: Change of a source's mean |error| below which it is neither better nor worse: half a point.
CLEAR = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """Changes from on to off, so that what helps is positive but for ``tau``. ``error``: of the mean over sources of their
    mean |error| of throughput, with its bootstrap interval over sources; ``moved``: rows whose throughput changes;
    ``helped``, ``hurt``: sources that are clearly worse and better without it, most first; ``lost``: rows that then have no
    projection; ``memory``: of the mean |error| of peaks; ``whatif``: of the median error of gains inside a group. None where
    there is nothing to compare."""

    error: float
    interval: tuple[float, float] | None
    moved: int
    helped: tuple[str, ...]
    hurt: tuple[str, ...]
    lost: int
    tau: float | None
    memory: float | None
    whatif: float | None


def worth(on: pd.DataFrame, off: pd.DataFrame, publisher: Mapping[str, str]) -> Worth:
    """Of rows of one predictor and one fit, twice. ``publisher``: by run id."""
    before, after = (eligible(rows).set_index("run_id")["error"].dropna() for rows in (on, off))
    both = before.index.intersection(after.index)
    was, now = before[both], after[both]
    changes = (now.abs() - was.abs()).groupby([publisher[run] for run in both]).mean()
    order = changes.sort_values()
    moved = both[~np.isclose(now, was, rtol=0.0, atol=1e-6)]
    return Worth(
        error=float(changes.mean()) if len(changes) else 0.0,
        interval=resample.of_mean(changes.tolist(), LEVEL),
        moved=len(moved),
        helped=tuple(order[order > CLEAR].index[::-1]),
        hurt=tuple(order[order < -CLEAR].index),
        lost=len(before.index.difference(after.index)),
        tau=_change(_tau(on), _tau(off)),
        memory=_change(_memory(on), _memory(off)),
        whatif=_change(gains(on).typical_error, gains(off).typical_error),
    )


def _change(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _tau(rows: pd.DataFrame) -> float | None:
    return summary(group_rankings(rows)).tau


def _memory(rows: pd.DataFrame) -> float | None:
    errors = rows["memory_error"].dropna().abs()
    return float(errors.mean()) if len(errors) else None
