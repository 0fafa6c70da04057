"""Bootstrap confidence intervals of a mean over groups: groups are drawn again, rows inside a group stay together.

Percentile bootstrap (Efron, *Bootstrap methods: another look at the jackknife*, Annals of Statistics 7, 1979), with a
fixed seed, so that the same rows give the same interval. Groups share a source and so their errors: the interval says how
much the figure hangs on which groups happen to be there, not how it would come out on other hardware. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.9
DRAWS = 2000
_SEED = 20240607


@cache
def _counts(groups: int) -> NDArray[np.float64]:
    """Returns how often each of ``groups`` is drawn, (draws, groups)."""
    generator = np.random.default_rng(_SEED)
    drawn = generator.multinomial(groups, np.full(groups, 1.0 / groups), size=DRAWS)
    return drawn.astype(float)


def of_mean(values: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Returns the interval of the mean of one value a group; None for fewer than two groups."""
    return of_ratio(values, np.ones(len(values)).tolist(), level)


def of_ratio(sums: Sequence[float], weights: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Returns the interval of Σ sums / Σ weights over groups; None for fewer than two, or where a draw has no weight."""
    if len(sums) < 2:
        return None
    counts = _counts(len(sums))
    below = counts @ np.asarray(weights, dtype=float)
    if not (below > 0.0).all():
        return None
    low, high = np.quantile(counts @ np.asarray(sums, dtype=float) / below, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)
