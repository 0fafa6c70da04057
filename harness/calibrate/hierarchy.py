"""Partial pooling: θ of a term = what all runs say + vendor + architecture + GPU + framework, each drawn from a prior.

y ≈ Σ share · θ + u(family) + noise, Gaussian priors of zero mean on every part. One prior variance per (term, level),
estimated with the fit by empirical Bayes (the fixed point of the marginal likelihood: MacKay, *Bayesian interpolation*,
Neural Computation 4, 1992; evidence updates with an inverse-gamma prior, so that a level seen once keeps a stated
variance). Rows are reweighted as under Student-t noise (Lange, Little, Taylor, *Robust statistical modeling using the t
distribution*, JASA 84, 1989), and each (family × GPU × framework) cell weighs one. A level without rows keeps mean zero
and the whole of its prior variance: it takes the estimate of the coarser levels and a larger standard error. Pure, and
deterministic: the number of iterations is fixed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.calibrate import weights
from harness.calibrate.calibration import Observation
from projector.experience import TERMS

__all__ = ["Design", "Posterior", "design", "fit"]

Array = NDArray[np.float64]
#: A place that something may be off at: (term, level, label). Levels: 0, 1, … as in ``Observation.levels``, then these.
STACK, FAMILY = "stack", "family"
Level = int | str

# Prior standard deviations of θ, before any run is seen: a projector whose constants come from data sheets and published
# measurements is off by some 15 % in all, GPUs differ by half of that, and single terms are known half as well.
STEP_SD, TERM_SD = 0.15, 0.25
FINER = 0.5  # of a level below all runs, relative to the level of all
FAMILY_SD = 0.1
# Pseudo-observations behind a prior variance.
STRENGTH = 1.0
# Degrees of freedom of the noise: four keeps a row at three standard deviations at a third of its weight.
DEGREES = 4.0
ITERATIONS = 10
# Reweighting is the dear part; it settles early.
REWEIGHTED = frozenset({0, 1, 3, 6})
LEAST_VARIANCE = 1e-6
LEAST_NOISE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Means and covariance of the columns seen, and the variances of every (term, level)."""

    terms: tuple[int, ...]
    depth: int
    columns: Mapping[tuple[int, Level, str], int]
    mean: Array
    covariance: Array
    variances: Mapping[tuple[int, Level], float]
    noise: float

    def of_levels(self, levels: Sequence[str]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """θ and its standard error by term at a place: the sum over its ``levels``."""
        return self._sums([(i, label) for i, label in enumerate(levels)])

    def of_stack(self, framework: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What a framework adds to θ, and its standard error, by term."""
        return self._sums([(STACK, framework)])

    def _sums(self, places: Sequence[tuple[Level, str]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        values, errors = [0.0] * len(TERMS), [0.0] * len(TERMS)
        for term in self.terms:
            keys = [(term, level, label) for level, label in places]
            known = [self.columns[key] for key in keys if key in self.columns]
            unseen = sum(self.variances[key[:2]] for key in keys if key not in self.columns)
            values[term] = float(self.mean[known].sum())
            errors[term] = math.sqrt(float(self.covariance[np.ix_(known, known)].sum()) + unseen)
        return tuple(values), tuple(errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The columns of all rows: ``x`` (rows, columns), what each column is, and of each row its ratio and its cell."""

    terms: tuple[int, ...]
    depth: int
    columns: tuple[tuple[int, Level, str], ...]
    x: Array
    y: Array
    cell: NDArray[np.int_]


def design(observations: Sequence[Observation], terms: Sequence[int]) -> Design:
    """Of a non-empty set; ``terms``: places in :data:`projector.experience.TERMS`. Columns of zeros are left out."""
    share = np.array([o.shares for o in observations])
    depth = len(observations[0].levels)
    members: dict[tuple[Level, str], list[int]] = defaultdict(list)
    for i, o in enumerate(observations):
        places: list[tuple[Level, str]] = [(level, o.levels[level]) for level in range(depth)]
        for place in (*places, (STACK, o.framework), (FAMILY, o.family)):
            members[place].append(i)
    columns: list[tuple[int, Level, str]] = []
    made: list[Array] = []
    for term in terms:
        for (level, label), rows in members.items():
            if (level == FAMILY and term != 0) or not share[rows, term].any():
                continue
            column = np.zeros(len(observations))
            column[rows] = share[rows, term]
            columns.append((term, level, label))
            made.append(column)
    codes = {cell: i for i, cell in enumerate(dict.fromkeys(o.cell for o in observations))}
    return Design(
        terms=tuple(terms),
        depth=depth,
        columns=tuple(columns),
        x=np.stack(made, axis=1),
        y=np.array([o.log_ratio for o in observations]),
        cell=np.array([codes[o.cell] for o in observations]),
    )


def fit(whole: Design, chosen: NDArray[np.bool_]) -> Posterior:
    """The posterior of the chosen rows, at least one; what the others measured is not looked at."""
    depth, x = whole.depth, whole.x[chosen]
    used = np.flatnonzero(np.any(x != 0.0, axis=0))
    columns = [whole.columns[i] for i in used]
    blocks = [key[:2] for key in columns]
    names = list(dict.fromkeys(blocks))
    place = {name: i for i, name in enumerate(names)}
    cell = whole.cell[chosen]
    mean, covariance, variances, noise = _solve(
        np.ascontiguousarray(x[:, used]),
        whole.y[chosen],
        1.0 / np.bincount(cell)[cell],
        np.array([place[b] for b in blocks]),
        np.array([_prior(b, depth) for b in names]),
    )
    every = [(term, level) for term in whole.terms for level in (*range(depth), STACK)]
    known = dict(zip(names, variances.tolist(), strict=True))
    return Posterior(
        terms=whole.terms,
        depth=depth,
        columns={key: i for i, key in enumerate(columns)},
        mean=mean,
        covariance=covariance,
        variances={block: known.get(block, _prior(block, depth)) for block in every},
        noise=noise + known.get((0, FAMILY), 0.0),
    )


def _prior(block: tuple[int, Level], depth: int) -> float:
    term, level = block
    if level == FAMILY:
        return FAMILY_SD**2
    return float(((STEP_SD if term == 0 else TERM_SD) * (1.0 if level == depth - 1 else FINER)) ** 2)


def _solve(
    x: Array, y: Array, weight: Array, block: NDArray[np.int_], prior: Array
) -> tuple[Array, Array, Array, float]:
    """Means (k,), covariance (k, k), variance of each block, noise variance."""
    size, whole = len(prior), float(weight.sum())
    count = np.bincount(block, minlength=size).astype(float)
    centre = weights.median(y, weight)
    noise = max((1.4826 * weights.median(np.abs(y - centre), weight)) ** 2, LEAST_NOISE)
    variance, residual = prior.copy(), y - centre
    covariance: Array
    for turn in range(ITERATIONS):
        if turn in REWEIGHTED:
            robust = weight * (DEGREES + 1.0) / (DEGREES + residual**2 / noise)
            scaled = x * robust[:, None]
            gram, target = scaled.T @ x, scaled.T @ y
        covariance = np.asarray(np.linalg.inv(gram / noise + np.diag(1.0 / variance[block])), dtype=np.float64)
        mean = covariance @ target / noise
        residual = y - x @ mean
        fitted = np.clip(count - np.bincount(block, np.diag(covariance), minlength=size) / variance, 0.0, None)
        noise = max(float((robust @ residual**2 + np.sum(gram * covariance)) / whole), LEAST_NOISE)
        squares = np.bincount(block, mean**2, minlength=size)
        variance = np.maximum((squares + STRENGTH * prior) / (fitted + STRENGTH), LEAST_VARIANCE)
    return mean, covariance, variance, noise
