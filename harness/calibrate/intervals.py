"""90 % prediction intervals of held-out rows: conformal, from residuals of rows that no fit saw.

The score of a row is |ln(measured / estimated)| over its difficulty: a non-negative linear function of what the
projection knows of its own uncertainty (:func:`projector.experience.features`), fitted to the absolute residuals, with
the standard error of the estimate added in quadrature. A row's interval takes the quantile of the scores of all *other*
families, each (family × GPU × framework) cell weighing the same, as in the headlines, and the row itself standing for one
more cell of unknown score (weighted split-conformal prediction: Tibshirani, Barber, Candès, Ramdas, *Conformal
prediction under covariate shift*, arXiv 1904.06019). Families differ from one another more than exchangeable draws do,
so the coverage is reported as it came out, never assumed. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from harness.calibrate import weights
from projector import experience

__all__ = ["LEVEL", "Learnt", "half_widths", "learn"]

LEVEL = 0.9

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """Difficulty (by feature, each taken for at most what was ``seen``, and in all at least ``least``) and the conformal
    quantile of the scores.
    """

    coefficients: tuple[float, ...]
    seen: tuple[float, ...]
    least: float
    quantile: float


def learn(features: Array, error: Array, residual: Array, cells: Sequence[Hashable]) -> Learnt | None:
    """From features (n, k), standard errors (n,) and |residual| (n,) of rows that no fit saw.

    None: too few cells for a 90 % quantile.
    """
    weight = weights.by_cell(cells)
    # one broken row must not set the scale of all
    cut = np.minimum(residual, weights.quantile(residual, weight, 0.95))
    made = Learnt(
        coefficients=tuple(_difficulty(features, cut, weight).tolist()),
        seen=tuple(features.max(axis=0).tolist()),
        # nor may a row without any sign of trouble be taken for exact: half of what is usual
        least=0.5 * float(np.average(cut, weights=weight)),
        quantile=math.nan,
    )
    quantile = _quantile(residual / _scale(features, error, made), weight)
    return replace(made, quantile=quantile) if math.isfinite(quantile) else None


def half_widths(features: Array, error: Array, learnt: Learnt) -> Array:
    """Half widths (n,) in ln(step time) of rows with these features (n, k) and standard errors (n,)."""
    return learnt.quantile * _scale(features, error, learnt)


def _scale(x: Array, error: Array, learnt: Learnt) -> Array:
    linear = np.minimum(x, learnt.seen) @ np.array(learnt.coefficients)
    scale: Array = np.hypot(np.maximum(linear, max(learnt.least, experience.LEAST)), error)
    return scale


def _difficulty(x: Array, cut: Array, weight: Array) -> Array:
    """Non-negative coefficients (k,) of the expected absolute residual: exact, by trying every set of features."""
    gram, target = (x * weight[:, None]).T @ x, x.T @ (weight * cut)
    best, found = 0.0, np.zeros(x.shape[1])
    for size in range(1, x.shape[1] + 1):
        for some in combinations(range(x.shape[1]), size):
            solved, *_ = np.linalg.lstsq(gram[np.ix_(some, some)], target[list(some)], rcond=None)
            gain = float(target[list(some)] @ solved)
            if (solved >= 0.0).all() and gain > best * (1.0 + 1e-9):
                best, found = gain, np.zeros(x.shape[1])
                found[list(some)] = solved
    return found


def _quantile(score: Array, weight: Array) -> float:
    """The conformal quantile: the new row is one more cell, of a score that may be anything."""
    whole = float(weight.sum())
    level = LEVEL * (whole + 1.0) / whole
    return math.inf if level > 1.0 else weights.quantile(score, weight, level)
