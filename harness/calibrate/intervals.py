"""90 % prediction intervals: conformal over sources, from residuals of rows whose source no fit saw.

The score of a row is |ln(measured / estimated)| over its difficulty: a non-negative linear function of what a projection
knows of its own uncertainty (:func:`projector.experience.features`), fitted to the absolute residuals. Two of the features
fall with the number of other sources that measured the GPU, and the framework: where nobody else did, the interval is
the widest. Sources are the unit that is exchangeable: every cell of a source weighs one, whatever its rows, and a new
source stands for one more, as heavy as the others are on average, of unknown score (Dunn, Wasserman, Ramdas,
*Distribution-free prediction sets for two-layer hierarchical models*, JASA 118, 2023; Lee, Barber, Willett,
*Distribution-free inference with hierarchical data*, arXiv 2306.06342).
Pure functions.
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


def by_source(sources: Sequence[Hashable], cells: Sequence[Hashable]) -> Array:
    """Weights under which every source weighs one, and the cells of a source the same."""
    inside = list(zip(sources, cells, strict=True))
    each = weights.by_cell(inside)
    share = dict(zip(dict.fromkeys(inside), weights.by_cell(s for s, _ in dict.fromkeys(inside)).tolist(), strict=True))
    return np.array([weight * share[pair] for weight, pair in zip(each.tolist(), inside, strict=True)])


def learn(features: Array, residual: Array, sources: Sequence[Hashable], cells: Sequence[Hashable]) -> Learnt | None:
    """From features (n, k) and |residual| (n,) of rows whose source no fit saw. None: too few sources for the quantile."""
    weight = weights.by_cell(zip(sources, cells, strict=True))
    new = float(weight.sum()) / len(set(sources))
    # one broken row must not set the scale of all
    cut = np.minimum(residual, weights.quantile(residual, weight, 0.95))
    made = Learnt(
        coefficients=tuple(_difficulty(features, cut, weight).tolist()),
        seen=tuple(features.max(axis=0).tolist()),
        # nor may a row without any sign of trouble be taken for exact: half of what is usual
        least=0.5 * float(np.average(cut, weights=weight)),
        quantile=math.nan,
    )
    quantile = _quantile(residual / _scale(features, made), weight, new)
    return replace(made, quantile=quantile) if math.isfinite(quantile) else None


def half_widths(features: Array, learnt: Learnt) -> Array:
    """Half widths (n,) in ln(step time) of rows with these features (n, k)."""
    return learnt.quantile * _scale(features, learnt)


def _scale(x: Array, learnt: Learnt) -> Array:
    linear = np.minimum(x, learnt.seen) @ np.array(learnt.coefficients)
    scale: Array = np.maximum(linear, max(learnt.least, experience.LEAST))
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


def _quantile(score: Array, weight: Array, new: float) -> float:
    """The conformal quantile: what is asked for is of one more source, of weight ``new`` and of any score."""
    level = LEVEL * (1.0 + new / float(weight.sum()))
    return math.inf if level > 1.0 else weights.quantile(score, weight, level)
