"""How far off the ratio of two projections is, learnt from pairs of measured runs, and judged with a source left out.

The spread of a kind of change is the root of the mean square error (ln) of the pairs that differ in it alone, every source
weighing the same; it leans on that of all kinds by :data:`LEAN` sources. Spreads of several kinds add up in squares. The
quantile of |error| / spread is conformal as in :mod:`harness.calibrate.intervals`, each (source × kinds) cell weighing
the same. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.calibrate import weights
from projector.relative import Ratios

LEVEL = 0.9
LEAN = 3.0
#: One broken pair must not set the spread of its kind: errors count at most as this quantile of all.
_CUT = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A pair of measured runs: ``error`` is ln(projected ratio / measured ratio); ``kinds``: those of
    :mod:`projector.workload.kinds`, none for one configuration measured twice."""

    source: str
    kinds: frozenset[str]
    error: float


def learn(pairs: Sequence[Change]) -> Ratios | None:
    """None: too few (source × kinds) cells for a quantile."""
    cells = [(pair.source, pair.kinds) for pair in pairs]
    weight = weights.by_cell(cells)
    whole = float(weight.sum())
    level = LEVEL * (whole + 1.0) / whole if pairs else np.inf
    if level > 1.0:
        return None
    size = np.abs([pair.error for pair in pairs])
    square = np.minimum(size, weights.quantile(size, weight, _CUT)) ** 2
    found: dict[tuple[str, frozenset[str]], list[float]] = {}
    for cell, each in zip(cells, square.tolist(), strict=True):
        found.setdefault(cell, []).append(each)
    means: dict[frozenset[str], list[float]] = {}
    for (_, kinds), mine in found.items():
        if len(kinds) < 2:
            means.setdefault(kinds, []).append(sum(mine) / len(mine))
    usual = float(np.mean([each for those in means.values() for each in those] or [square.mean()]))

    def spread(those: Sequence[float]) -> float:
        return float(np.sqrt((sum(those) + LEAN * usual) / (len(those) + LEAN)))

    made = Ratios(
        level=LEVEL,
        quantile=1.0,
        repeat=spread(means.pop(frozenset(), [])),
        other=spread([]),
        kinds={kind: spread(those) for (kind,), those in means.items()},
        evidence={"pairs": str(len(pairs)), "sources": str(len({pair.source for pair in pairs}))},
    )
    scores = size / np.array([made.spread(pair.kinds) for pair in pairs])
    return replace(made, quantile=weights.quantile(scores, weight, level))


def held_out(pairs: Sequence[Change]) -> list[tuple[Change, float]]:
    """Each pair with the half width (ln) that the pairs of all other sources give it; none where they are too few."""
    made: list[tuple[Change, float]] = []
    for source in dict.fromkeys(pair.source for pair in pairs):
        known = learn([pair for pair in pairs if pair.source != source])
        if known is not None:
            made += [(pair, known.half_width(pair.kinds)) for pair in pairs if pair.source == source]
    return made
