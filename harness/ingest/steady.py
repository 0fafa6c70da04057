"""The steady state of a log: which steps are cut, by a stated rule, and the median of the rest with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Steady", "steady"]

_WARM_UP = 5  # steps; Primus' own metrics drop as many
_SPREADS = (
    5.0  # median absolute deviations (as sigmas) beyond which a step is an outlier: checkpoint, evaluation, stall
)
_SIGMA_PER_MAD = 1.4826  # of a normal distribution
_FLOOR = 0.01  # a step within 1 % of the median is never an outlier
_RESAMPLES = 400


@dataclass(frozen=True, kw_only=True)
class Steady:
    """``seconds``: median of the kept steps; ``rel_std``: standard error of that median by bootstrap, relative.

    ``kept``: indices of the kept steps; ``cut``: what was dropped, in words.
    """

    seconds: float
    rel_std: float | None
    kept: tuple[int, ...]
    cut: tuple[str, ...]


def steady(seconds: Sequence[float], skipped: Sequence[bool] = ()) -> Steady:
    """The steady state of step times in log order. Raises :class:`ValueError` for an empty sequence.

    Cut: the first 5 steps (of a shorter log the first third), steps that the optimizer skipped, and steps further than
    5 sigma (from the median absolute deviation; at least 1 %) above or below the median.
    """
    if not seconds:
        raise ValueError("no steps")
    warm = min(_WARM_UP, len(seconds) // 3)
    cut = [f"first {warm} steps (warm-up)"] if warm else []
    kept = [i for i in range(warm, len(seconds)) if not (skipped and skipped[i])] or list(range(len(seconds)))
    if (dropped := len(seconds) - warm - len(kept)) > 0:
        cut.append(f"{dropped} skipped by the optimizer")
    values = np.asarray([seconds[i] for i in kept])
    middle = float(np.median(values))
    sigma = max(_SIGMA_PER_MAD * float(np.median(np.abs(values - middle))), _FLOOR * middle / _SPREADS)
    inside = np.abs(values - middle) <= _SPREADS * sigma
    if outliers := int((~inside).sum()):
        cut.append(f"{outliers} outliers beyond {_SPREADS:g} sigma")
    return Steady(
        seconds=float(np.median(values[inside])),
        rel_std=_bootstrap(values[inside]),
        kept=tuple(i for i, good in zip(kept, inside, strict=True) if good),
        cut=tuple(cut),
    )


def _bootstrap(values: np.ndarray) -> float | None:
    """Relative standard error of the median, from 400 resamples with a fixed seed; None below three values."""
    if len(values) < 3:
        return None
    draws = np.random.default_rng(0).choice(values, (_RESAMPLES, len(values)))
    return round(float(np.median(draws, axis=1).std() / np.median(values)), 6)
