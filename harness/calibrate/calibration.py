"""Observations of measured over projected step time, and the simplest law of them: one factor per key.

The factor is exp of the weighted median of ln(measured / projected) step time; every (family × framework) cell has
the same weight, so that a table of many rows does not drown the others. Laws that pool the levels, and how one is
chosen: see :mod:`harness.calibrate.laws` and :mod:`harness.calibrate.folds`. All functions are pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.contracts.estimates import Factor
from projector.experience import TERMS

__all__ = ["WHOLE", "Observation", "factor_of", "mean_factor", "weighted_median"]

#: Shares of a step of which no part is known.
WHOLE = (1.0, *([0.0] * (len(TERMS) - 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One comparable row: ``log_ratio`` = ln(measured / projected step time), that is ln(projected / measured TGS); one
    that is not finite: projected, not measured.

    ``levels``: keys from finest to coarsest. ``shares``: of the projected step, by term
    (:data:`projector.experience.TERMS`); a projection that says nothing of its parts is off in all of them alike.
    ``assumed``: entries that its configuration lacked.
    """

    run_id: str
    family: str
    framework: str
    levels: tuple[str, ...]
    log_ratio: float
    gpu: str = ""
    shares: tuple[float, ...] = WHOLE
    assumed: int = 0

    @property
    def cell(self) -> tuple[str, str, str]:
        """What weighs as one."""
        return (self.family, self.gpu, self.framework)


def weighted_median(values: ArrayLike, weights: ArrayLike) -> float:
    """The value with half of the weight on each side (the mean of two where the half falls between them)."""
    x: NDArray[np.float64] = np.asarray(values, dtype=float)
    w: NDArray[np.float64] = np.asarray(weights, dtype=float)
    order = np.argsort(x, kind="stable")
    x, cumulated = x[order], np.cumsum(w[order])
    half = cumulated[-1] / 2
    tolerance = 1e-9 * cumulated[-1]
    low = int(np.searchsorted(cumulated, half - tolerance))
    high = int(np.searchsorted(cumulated, half + tolerance))
    return float((x[low] + x[min(high, len(x) - 1)]) / 2)


def factor_of(observations: Sequence[Observation], key: str, level: int = 0) -> Factor:
    """The factor of a non-empty set of observations, each (family × framework) cell weighing the same."""
    cells = Counter(o.cell for o in observations)
    ratios = np.array([o.log_ratio for o in observations])
    weights = np.array([1.0 / cells[o.cell] for o in observations])
    centre = weighted_median(ratios, weights)
    spread = weighted_median(np.abs(ratios - centre), weights)
    return Factor(key=key, value=math.exp(centre), rows=len(ratios), cells=len(cells), spread=spread, level=level)


def mean_factor(observations: Sequence[Observation], logs: Sequence[float]) -> Factor:
    """What estimates (ln) come to over the rows of one finest key: their mean over cells, and the spread they leave."""
    cells = Counter(o.cell for o in observations)
    weights = np.array([1.0 / cells[o.cell] for o in observations])
    left = np.abs([o.log_ratio - log for o, log in zip(observations, logs, strict=True)])
    return Factor(
        key=observations[0].levels[0],
        value=math.exp(float(np.average(logs, weights=weights))),
        rows=len(observations),
        cells=len(cells),
        spread=weighted_median(left, weights),
    )
