"""The steps of one ingested log as plain data, for the table and the plot of what was cut and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class CutView:
    """Steps cut for one reason; ``first`` and ``last`` are iterations, times are seconds."""

    reason: str
    steps: int
    first: int
    last: int
    median_s: float
    total_s: float


@dataclass(frozen=True, kw_only=True)
class StepView:
    """One run. ``reasons``: per step an index of ``names``, 0 for kept. ``timers``: (name, mean seconds a step).

    ``low``, ``high``: 90 % interval of the median; None for fewer than three steps. ``kernels``: (name, seconds, calls)
    of a trace, and ``shares``: (what, share of the traced time). ``segment`` counts the starts of the job, a step each;
    empty: one start.
    """

    id: str
    dialect: str
    iteration: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    reasons: npt.NDArray[np.uint8]
    names: Sequence[str]
    median: float
    mean: float
    low: float | None
    high: float | None
    kept: int
    cuts: tuple[CutView, ...]
    timers: tuple[tuple[str, float], ...] = ()
    kernels: tuple[tuple[str, float, int], ...] = ()
    shares: tuple[tuple[str, float], ...] = ()
    segment: npt.NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))
