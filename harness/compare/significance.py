"""How sure a difference of two runs is: the interval of the ratio of their step times. Pure functions.

Of steps by resampling (:mod:`harness.evidence.medians`), of a stated figure with its relative standard error by
normal draws. What repeats of a whole run would add (another node, another day) no single run can say.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.compare.side import Side
from harness.evidence.medians import LEAST, resampled
from projector.dataclass import dataclass

LEVEL = 0.90
TIME, RATE = "step time", "TGS"
_RESAMPLES = 4000

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """``value``: other over first, of ``what`` (:data:`TIME` or :data:`RATE`); above 1 the other is slower in time and
    faster in rate. ``low``, ``high``: its interval, None where a side has neither steps nor a spread (``silent``)."""

    what: str
    value: float
    low: float | None = None
    high: float | None = None
    silent: tuple[str, ...] = ()

    @property
    def significant(self) -> bool | None:
        """Whether the interval excludes 1; None where there is none."""
        return None if self.low is None or self.high is None else not self.low <= 1.0 <= self.high


def ratio(first: Side, other: Side, level: float = LEVEL, what: str = TIME) -> Ratio:
    """Other over first, of the step times or of TGS. Raises :class:`ValueError` where a side has no such figure."""
    values = [_figure(side, what) for side in (first, other)]
    middle = values[1] / values[0]
    draws = [_draws(side, seed) for seed, side in enumerate((first, other))]
    silent = tuple(side.name for side, drawn in zip((first, other), draws, strict=True) if drawn is None)
    if draws[0] is None or draws[1] is None:
        return Ratio(what=what, value=middle, silent=silent)
    slower = draws[1] / draws[0]
    quotients = middle * (1 / slower if what == RATE else slower)
    low, high = np.quantile(quotients, [(1 - level) / 2, (1 + level) / 2])
    return Ratio(what=what, value=middle, low=float(low), high=float(high))


def interval(side: Side, level: float = LEVEL) -> tuple[float, float] | None:
    """(low, high) of the step time over its figure; None where nothing says how sure that figure is."""
    draws = _draws(side, 0)
    if draws is None:
        return None
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _figure(side: Side, what: str) -> float:
    value = side.tgs if what == RATE else side.step_seconds
    if not value:
        raise ValueError(f"{side.name} has no {what}")
    return value


def _draws(side: Side, seed: int) -> Floats | None:
    """Resampled step times over the figure of the side, or None where nothing says how sure that figure is."""
    if side.series is not None and len(side.series.kept) >= LEAST:
        kept = side.series.kept
        return resampled(kept, _RESAMPLES, seed) / float(np.median(kept))
    if side.rel_std is not None and side.rel_std > 0:
        return np.maximum(1 + side.rel_std * np.random.default_rng(seed).standard_normal(_RESAMPLES), 1e-3)
    return None
