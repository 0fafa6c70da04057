"""Estimates how sure the median of a series of step times is. Pure functions.

The median of n draws with replacement is the value at a quantile that is Beta((n+1)/2, (n+1)/2) distributed (order
statistics of the uniform distribution), so that a resample costs one number whatever n is. Neighbouring steps of a run
are alike, and n is therefore the effective one: n / (1 + 2 sum of the autocorrelations of "above the median"), summed
while they are positive (Geyer 1992, Practical Markov chain Monte Carlo, section 3.3, of single lags) and beyond what
chance alone gives a series of this length (1.645 / sqrt n).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

LEAST = 3  # fewest values of which a median has an interval
_MOST_LAGS = 200
_CHANCE = 1.645  # normal quantile: one lag in twenty of independent values exceeds this many 1 / sqrt n

Floats = npt.NDArray[np.float64]


def effective(values: Floats) -> float:
    """Returns the number of independent values that say as much of the median as ``values`` in order do; at least 1."""
    count = len(values)
    above = (values > np.median(values)).astype(np.float64)
    above -= above.mean()
    power = float(above @ above)
    if count < 2 * LEAST or not power:
        return float(count)
    total, least = 0.0, _CHANCE / math.sqrt(count)
    for lag in range(1, min(count // 4, _MOST_LAGS) + 1):
        correlation = float(above[lag:] @ above[:-lag]) / power
        if correlation <= least:
            break
        total += correlation
    return max(count / (1 + 2 * total), 1.0)


def resampled(values: Floats, resamples: int, seed: int) -> Floats:
    """Returns ``resamples`` medians of resampled ``values`` (at least one); the same for the same seed."""
    shape = (effective(values) + 1) / 2
    quantiles = np.random.default_rng(seed).beta(shape, shape, resamples)
    ordered = np.sort(values)
    medians: Floats = ordered[np.minimum((quantiles * len(values)).astype(np.int64), len(values) - 1)]
    return medians
