"""One step-time factor per key (GPU, or GPU × precision): fitted on all rows, and held out by model family.

The factor is exp of the weighted median of ln(measured / projected) step time; every (family × framework) cell has
the same weight, so that a table of many rows does not drown the others. A held-out factor has seen no row of the
family it serves: it comes from other families on the same key, and where there are none, from the next coarser level
(architecture, vendor, everything), which is flagged. All functions are pure.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Factor", "Observation", "factor_of", "fit_all", "held_out", "weighted_median"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One comparable row: ``log_ratio`` = ln(measured / projected step time),
    that is ln(projected / measured TGS). ``levels``: keys from finest to coarsest."""

    run_id: str
    family: str
    framework: str
    levels: tuple[str, ...]
    log_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A multiplier on projected step time. ``spread``: weighted median absolute deviation of the log ratios.

    ``key``: what it was fitted on; ``level``: 0 the row's own key, 1 the next coarser one, …; −1: nothing to fit on
    (1.0).
    """

    key: str
    value: float
    rows: int
    cells: int
    spread: float
    level: int = 0

    @property
    def fallback(self) -> bool:
        """True where the factor does not rest on the row's own key."""
        return self.level != 0


NO_FACTOR = Factor(key="", value=1.0, rows=0, cells=0, spread=math.nan, level=-1)


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
    cells = Counter((o.family, o.framework) for o in observations)
    ratios = np.array([o.log_ratio for o in observations])
    weights = np.array([1.0 / cells[o.family, o.framework] for o in observations])
    centre = weighted_median(ratios, weights)
    spread = weighted_median(np.abs(ratios - centre), weights)
    return Factor(key=key, value=math.exp(centre), rows=len(ratios), cells=len(cells), spread=spread, level=level)


def fit_all(observations: Iterable[Observation]) -> dict[str, Factor]:
    """One factor per finest key, from all of its rows."""
    by_key: dict[str, list[Observation]] = defaultdict(list)
    for o in observations:
        by_key[o.levels[0]].append(o)
    return {key: factor_of(group, key) for key, group in by_key.items()}


def held_out(
    observations: Sequence[Observation], wanted: Iterable[tuple[tuple[str, ...], str]]
) -> Mapping[tuple[tuple[str, ...], str], Factor]:
    """For every wanted (levels, family): the factor of the finest level that holds another family than this one."""
    by_key: dict[str, list[Observation]] = defaultdict(list)
    for o in observations:
        for key in dict.fromkeys(o.levels):
            by_key[key].append(o)
    return {(levels, family): _first_level(by_key, levels, family) for levels, family in set(wanted)}


def _first_level(by_key: Mapping[str, list[Observation]], levels: tuple[str, ...], family: str) -> Factor:
    for level, key in enumerate(levels):
        others = [o for o in by_key.get(key, ()) if o.family != family]
        if others:
            return factor_of(others, key, level)
    return NO_FACTOR
