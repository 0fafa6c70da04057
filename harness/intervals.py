"""90 % prediction intervals of held-out rows: conformal, from the residuals of other model families.

The score of a row is |ln(measured / projected)| over its difficulty: a non-negative linear function of what the
projection knows of its own uncertainty (how much was assumed, exposed communication, host time, how little its factor
rests on), fitted to the absolute residuals. A row's interval takes the quantile of the scores of all *other* families,
each (family × GPU × framework) cell weighing the same and the row itself standing for one more cell of unknown score
(weighted split-conformal prediction: Tibshirani, Barber, Candès, Ramdas, *Conformal prediction under covariate shift*,
arXiv 1904.06019). Families differ from one another more than exchangeable draws do, so the coverage is reported as it
came out, never assumed. How far off other families were under the same framework or on the same GPU was tried as a
further measure of difficulty and left out: it narrowed well-known combinations and lost the families that are new to
them. Pure functions.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from harness.calibration import Factor
from harness.results import Row
from projector import experience

__all__ = ["LEVEL", "Coverage", "Learnt", "attach", "coverage", "features", "inside", "learn"]

LEVEL = 0.9

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How often the measurement fell inside, over rows and over cells, and how wide the intervals are.

    ``width``: median of high / low − 1. ``rows``: held-out rows with an interval and a measurement.
    """

    rows: int
    inside: float
    macro: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """Difficulty (by feature, each taken for at most what was ``seen``, and in all at least ``least``) and the conformal
    quantile of the scores.
    """

    coefficients: tuple[float, ...]
    seen: tuple[float, ...]
    least: float
    quantile: float


def features(row: Row, factor: Factor | None) -> tuple[float, ...]:
    """What the projection of ``row`` knows of its own uncertainty (:func:`projector.experience.features`)."""
    assumed = len([word for word in row.assumed.split("; ") if word])
    cells = 0 if factor is None or factor.fallback else factor.cells
    return experience.features(assumed, row.breakdown, row.projected_step_seconds or math.inf, cells)


def learn(rows: Sequence[Row], factors: Mapping[tuple[str, str], Factor]) -> Learnt | None:
    """From all held-out rows of one predictor, for runs of families that none of them is; None: fewer than two families."""
    some = [row for row in rows if row.fit == "heldout" and row.error is not None]
    known = list({row.run_id: row for row in some}.values())
    if len({row.family for row in known}) < 2:
        return None
    x = np.array([features(row, factors.get((row.predictor, row.run_id))) for row in known])
    residual = np.array([abs(math.log1p(row.error or 0.0)) for row in known])
    return _learn(x, residual, _cell_weights(known))


def attach(rows: Sequence[Row], factors: Mapping[tuple[str, str], Factor]) -> list[Row]:
    """The rows with ``interval_low`` and ``interval_high`` (tokens/s/GPU) where they are held out and projected.

    ``factors``: held-out factor by (predictor, run id). A predictor whose rows come from fewer than two families gets
    no intervals: there is nothing to learn them from.
    """
    made = list(rows)
    by_predictor: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(made):
        if row.fit == "heldout" and row.projected_tgs is not None:
            by_predictor[row.predictor].append(i)
    for places in by_predictor.values():
        chosen = [made[i] for i in places]
        known = [factors.get((row.predictor, row.run_id)) for row in chosen]
        for i, half in zip(places, _half_widths(chosen, known), strict=True):
            tgs = made[i].projected_tgs
            if tgs is not None and math.isfinite(half):
                made[i] = replace(made[i], interval_low=tgs * math.exp(-half), interval_high=tgs * math.exp(half))
    return made


def _half_widths(rows: Sequence[Row], factors: Sequence[Factor | None]) -> Array:
    """Half width in ln(TGS) of each row's interval, (n,); infinite without other families to learn from."""
    x = np.array([features(row, factor) for row, factor in zip(rows, factors, strict=True)])
    families = np.array([row.family for row in rows])
    # one run that two suites select is one residual
    first = {row.run_id: i for i, row in reversed(list(enumerate(rows)))}
    known = np.array([row.error is not None and first[row.run_id] == i for i, row in enumerate(rows)], dtype=bool)
    residual = np.array([abs(math.log1p(row.error)) if row.error is not None else math.nan for row in rows])
    out = np.full(len(rows), math.inf)
    for family in dict.fromkeys(families.tolist()):
        theirs, mine = known & (families != family), families == family
        if len(set(families[theirs].tolist())) < 2:
            continue
        weight = _cell_weights([row for row, use in zip(rows, theirs, strict=True) if use])
        learnt = _learn(x[theirs], residual[theirs], weight)
        out[mine] = learnt.quantile * _scale(x[mine], learnt)
    return out


def _learn(x: Array, residual: Array, weight: Array) -> Learnt:
    # one broken row must not set the scale of all
    cut = np.minimum(residual, _weighted_quantile(residual, weight, 0.95))
    coefficients = tuple(_difficulty(x, cut, weight).tolist())
    # nor may a row without any sign of trouble be taken for exact: half of what is usual
    seen = tuple(x.max(axis=0).tolist())
    made = Learnt(
        coefficients=coefficients, seen=seen, least=0.5 * float(np.average(cut, weights=weight)), quantile=math.nan
    )
    return replace(made, quantile=_quantile(residual / _scale(x, made), weight))


def _cell_weights(rows: Sequence[Row]) -> Array:
    cells = [(row.family, row.gpu, row.framework) for row in rows]
    count = Counter(cells)
    return np.array([1.0 / count[cell] for cell in cells])


def _scale(x: Array, learnt: Learnt) -> Array:
    scale: Array = np.maximum(
        np.minimum(x, learnt.seen) @ np.array(learnt.coefficients), max(learnt.least, experience.LEAST)
    )
    return scale


def _difficulty(x: Array, cut: Array, weight: Array) -> Array:
    """Non-negative coefficients (k,) of the expected absolute residual: exact, by trying every set of features."""
    root = np.sqrt(weight)
    best, found = math.inf, np.zeros(x.shape[1])
    for size in range(1, x.shape[1] + 1):
        for some in combinations(range(x.shape[1]), size):
            columns = x[:, some] * root[:, None]
            solved, *_ = np.linalg.lstsq(columns, cut * root, rcond=None)
            loss = float(((columns @ solved - cut * root) ** 2).sum())
            if (solved >= 0.0).all() and loss < best * (1.0 - 1e-9):
                best, found = loss, np.zeros(x.shape[1])
                found[list(some)] = solved
    return found


def _quantile(score: Array, weight: Array) -> float:
    """The conformal quantile: the new row is one more cell, of a score that may be anything."""
    whole = float(weight.sum())
    level = LEVEL * (whole + 1.0) / whole
    return math.inf if level > 1.0 else _weighted_quantile(score, weight, level)


def _weighted_quantile(values: Array, weight: Array, level: float) -> float:
    order = np.argsort(values, kind="stable")
    cumulated = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(int(np.searchsorted(cumulated, level - 1e-12)), len(values) - 1)])


def inside(row: Row) -> bool | None:
    """Whether the measurement fell into the interval; None where one of the two is missing."""
    if row.interval_low is None or row.interval_high is None or row.measured_tgs is None:
        return None
    return row.interval_low <= row.measured_tgs <= row.interval_high


def coverage(rows: Iterable[Row]) -> Coverage | None:
    """Empirical coverage of the rows that have an interval and a measurement; None where none has."""
    judged = [(row, hit) for row in rows if (hit := inside(row)) is not None]
    if not judged:
        return None
    cells: dict[tuple[str, str, str], list[bool]] = defaultdict(list)
    for row, hit in judged:
        cells[row.family, row.gpu, row.framework].append(hit)
    wide = [row.interval_high / row.interval_low - 1.0 for row, _ in judged if row.interval_low and row.interval_high]
    return Coverage(
        rows=len(judged),
        inside=sum(hit for _, hit in judged) / len(judged),
        macro=sum(sum(hits) / len(hits) for hits in cells.values()) / len(cells),
        width=float(np.median(wide)),
    )
