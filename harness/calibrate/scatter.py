"""How far runs are off once corrected, by place: means that lean on the coarser place. Pure functions.

The scatter of a place is the mean |residual| of its cells and of :data:`LEAN` cells more that are as far off as the next
coarser place; a residual counts for at most a factor of two, so that a broken row does not set the scale.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.calibrate import weights
from harness.calibrate.calibration import Observation

__all__ = ["Scatter", "gather"]

LEAN = 3.0
MOST = math.log(2.0)

_Sums = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Scatter:
    """Weighted sums of |residual| and of weights, by place, and by place and label."""

    whole: _Sums
    parts: Mapping[tuple[str, str], tuple[float, float]]

    def of_levels(self, levels: Sequence[str], without: str = "") -> float:
        """The scatter at the finest of ``levels`` (fine to coarse), rows of one label left out."""
        found = self._mean("", 0.0, 0.0, without)
        for key in reversed(levels):
            found = self._mean(key, found, LEAN, without)
        return found

    def of_stack(self, framework: str, without: str = "") -> float:
        """The scatter of a framework."""
        return self._mean(f"stack:{framework}", self._mean("", 0.0, 0.0, without), LEAN, without)

    def _mean(self, place: str, coarser: float, lean: float, without: str) -> float:
        total, weight = self.whole.get(place, (0.0, 0.0))
        less, lighter = self.parts.get((place, without), (0.0, 0.0)) if without else (0.0, 0.0)
        kept = weight - lighter
        # what rounding leaves of a place of one label is no weight
        kept, total = (kept, total - less) if kept > 1e-9 else (0.0, 0.0)
        return (total + lean * coarser) / (kept + lean) if kept + lean > 0.0 else coarser


def gather(observations: Sequence[Observation], residuals: Sequence[float], labels: Sequence[str]) -> Scatter:
    """The sums of held-out ``residuals`` (ln); ``labels``: what each was held out by."""
    whole: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    parts: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    weighed = weights.by_cell(o.cell for o in observations).tolist()
    for o, residual, label, weight in zip(observations, residuals, labels, weighed, strict=True):
        for place in ("", *dict.fromkeys(o.levels), f"stack:{o.framework}"):
            for sums in (whole[place], parts[place, label]):
                sums[0] += weight * min(abs(residual), MOST)
                sums[1] += weight
    return Scatter({key: (a, b) for key, (a, b) in whole.items()}, {key: (a, b) for key, (a, b) in parts.items()})
