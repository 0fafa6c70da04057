"""What would a projection without error score? Measurements repeat to a few per cent, and an order inside groups of runs
that lie closer than that cannot be right. Pure functions.

The truth behind a measurement is not known; two stand-ins bracket it. With the *projection* as the truth the gaps inside
a group lack what no projector sees; with the *measurement* as the truth they hold its noise already and are too wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.contracts import frame
from harness.score.changes import Pair
from harness.score.ranking import tau_b
from harness.score.switches import usable
from projector.dataclass import dataclass

if TYPE_CHECKING:
    import pandas as pd

_DRAWS = 40
_SEED = 20240607
_NORMAL = 0.67449  # median of |x| of a standard normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Mean tau-b over groups of a projection without error, where a measurement repeats to ``spread`` (standard deviation,
    relative): with the projection, with the measurement as the truth."""

    spread: float
    low: float
    high: float


def repeats(found: Sequence[Pair]) -> tuple[float, int, int] | None:
    """Standard deviation of one measurement (relative), pairs, sources: from pairs that differ in nothing, the median over
    sources of each one's median. The median of |x − y| of two normal draws is 0.674 √2 of their deviation."""
    by: dict[str, list[float]] = {}
    for pair in found:
        if not pair.seen and not pair.unseen:
            by.setdefault(pair.publisher, []).append(abs(float(np.log(pair.measured))))
    if not by:
        return None
    middle = float(np.median([np.median(off) for off in by.values()]))
    return middle / (_NORMAL * 2**0.5), sum(map(len, by.values())), len(by)


def ceiling(rows: pd.DataFrame, spread: float) -> Ceiling | None:
    """Of the groups of ``rows`` (one predictor, one fit); None where no group has a measured order."""
    generator = np.random.default_rng(_SEED)
    low: list[float] = []
    high: list[float] = []
    for _, members in frame.parts(usable(rows[rows["group"] != ""]), ["group"]):
        measured = members["measured_tgs"].to_numpy(dtype=float)
        if len(measured) > 1 and tau_b(measured, measured) is not None:
            noise = np.exp(spread * generator.standard_normal((_DRAWS, len(measured))))
            low += _mean(members["projected_tgs"].to_numpy(dtype=float), noise)
            high += _mean(measured, noise)
    return Ceiling(spread=spread, low=float(np.mean(low)), high=float(np.mean(high))) if low and high else None


def _mean(truth: NDArray[np.float64], noise: NDArray[np.float64]) -> list[float]:
    """The mean over draws of tau-b between a truth and its measurement; none where every draw is tied."""
    found = [tau for drawn in truth * noise if (tau := tau_b(drawn, truth)) is not None]
    return [float(np.mean(found))] if found else []
