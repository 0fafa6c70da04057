"""The steady state of a log: which steps are cut, by a stated rule, and the median of the rest with its interval.

The rule, in this order (a step is cut for the first reason that holds):

1. ``other configuration``: logged under other arguments than the last;
2. ``other batch size``: with another global batch than the last one (batch-size ramp-up);
3. ``warm-up``: the first 5 steps after each start, of a start with fewer than 15 its first third (at least one, but of
   two steps within a tenth of each other neither: nobody can tell which is the steady one);
4. ``skipped``: the optimizer skipped it (loss scaling);
5. ``after a checkpoint`` and 6. ``after an evaluation``: the step that follows one (not where half of all steps do);
7. ``outlier``: further than 5 sigma from the median (sigma from the median absolute deviation; never within 1 %),
   where no more than a fifth of the steps are: more are a second level, not exceptions (see ``drift``).

Where nothing would remain, the reasons 6, 5, 4 and 3 are lifted, in this order, until something does.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.evidence.ingest.logs.logged import AFTER_CHECKPOINT, AFTER_EVALUATION, SKIPPED, Logged
from harness.evidence.medians import LEAST, resampled
from projector.dataclass import dataclass

_WARM_UP = 5  # steps; Primus' own metrics drop as many
_PAIR, _ALIKE = 2, 0.1  # two steps that differ by no more are both steady
_SPREADS = 5.0  # sigmas (from the median absolute deviation) beyond which a step is an outlier
_SIGMA_PER_MAD = 1.4826  # of a normal distribution
_MOST_FAR = 0.2  # share of the steps that may be outliers
_FLOOR = 0.01  # a step within 1 % of the median is never an outlier
_RESAMPLES = 2000
_LEAST_DRIFT = 20  # steps in which a change of level can be told from noise
_LEVEL = 0.90  # of the interval
_MOST_AFTER = 0.5  # share of steps after a checkpoint (or evaluation) beyond which these are no exception

REASONS = (
    "",
    "other configuration",
    "other batch size",
    "warm-up",
    "skipped",
    "after a checkpoint",
    "after an evaluation",
    "outlier",
)
_CONFIG, _BATCH, _WARM, _SKIP, _SAVE, _EVAL, _FAR = range(1, 8)

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Steps that are cut for one reason: how many, the first and last of them (iterations), their median and total time."""

    reason: str
    steps: int
    first: int
    last: int
    median: float
    total: float


@dataclass(frozen=True, kw_only=True)
class SteadyState:
    """``value``: the median of the kept steps; ``low``, ``high``: its 90 % bootstrap interval (None below 3 steps).

    ``reasons``: per step an index of :data:`REASONS`, 0 for kept. ``mean``: of the kept; ``rel_std``: standard error of
    the median, relative. ``drift``: median of the second half over that of the first, less one, before outliers are cut
    (None below 20 steps).
    """

    value: float
    mean: float
    low: float | None
    high: float | None
    rel_std: float | None
    drift: float | None
    kept: int
    reasons: npt.NDArray[np.uint8]
    cuts: tuple[Cut, ...]


def words(cut: Cut) -> str:
    """Returns a cut in words."""
    return f"{cut.steps} {cut.reason} (steps {cut.first} to {cut.last})" if cut.steps > 1 else f"1 {cut.reason}"


def state_of(record: Logged) -> SteadyState | None:
    """Computes the steady state of a record's steps, in units of its basis; None where no step is steady."""
    if not record.steps or not record.steady:
        return None
    values, batch = record.value, record.batch
    reasons = np.zeros(len(values), np.uint8)
    _mark(reasons, record.config != record.config[-1], _CONFIG)
    if batch.any():
        last = batch[np.flatnonzero(batch)[-1]]
        _mark(reasons, (batch != last) & (batch != 0), _BATCH)
    _mark(reasons, _warm_up_flags(values, record.segment), _WARM)
    for bit, reason in ((SKIPPED, _SKIP), (AFTER_CHECKPOINT, _SAVE), (AFTER_EVALUATION, _EVAL)):
        flags = (record.flags & bit) > 0
        if reason == _SKIP or flags.mean() <= _MOST_AFTER:
            _mark(reasons, flags, reason)
    for lifted in (_EVAL, _SAVE, _SKIP, _WARM):
        if (reasons == 0).any():
            break
        reasons[reasons == lifted] = 0
    inside = values[reasons == 0]
    half = len(inside) // 2
    drift = float(np.median(inside[half:]) / np.median(inside[:half]) - 1) if len(inside) >= _LEAST_DRIFT else None
    _mark_outliers(values, reasons)
    return _result(values, reasons, record.iteration, drift)


def _mark(reasons: npt.NDArray[np.uint8], where: Flags, reason: int) -> None:
    reasons[where & (reasons == 0)] = reason


def _warm_up_flags(values: Floats, segment: npt.NDArray[Any]) -> Flags:
    """Marks the first steps of each start."""
    steps = len(values)
    flags = np.zeros(steps, dtype=bool)
    for start, end in pairwise([0, *(np.flatnonzero(np.diff(segment)) + 1), steps]):
        count = end - start
        if count == _PAIR and abs(values[start] / values[start + 1] - 1) <= _ALIKE:
            continue
        flags[start : start + min(_WARM_UP, max(count // 3, int(count > 1)))] = True
    return flags


def _mark_outliers(values: Floats, reasons: npt.NDArray[np.uint8]) -> None:
    inside = values[reasons == 0]
    middle = float(np.median(inside))
    deviation = np.abs(inside - middle)
    sigma = max(_SIGMA_PER_MAD * float(np.median(deviation)), _FLOOR * middle / _SPREADS)
    far = (np.abs(values - middle) > _SPREADS * sigma) & (reasons == 0)
    if far.sum() <= _MOST_FAR * len(inside):
        _mark(reasons, far, _FAR)


def _result(
    values: Floats, reasons: npt.NDArray[np.uint8], iteration: npt.NDArray[np.int64], drift: float | None
) -> SteadyState:
    steady = values[reasons == 0]
    low, high, spread = _bootstrap(steady)
    middle = float(np.median(steady))
    return SteadyState(
        value=middle,
        mean=float(steady.mean()),
        low=low,
        high=high,
        rel_std=None if spread is None else round(spread / middle, 6),
        drift=drift,
        kept=len(steady),
        reasons=reasons,
        cuts=tuple(_cuts(values, reasons, iteration)),
    )


def _cuts(values: Floats, reasons: npt.NDArray[np.uint8], iteration: npt.NDArray[np.int64]) -> list[Cut]:
    cuts = []
    for code, reason in enumerate(REASONS[1:], start=1):
        where = np.flatnonzero(reasons == code)
        if len(where):
            cut, numbers = values[where], iteration[where]
            first, last, total = int(numbers.min()), int(numbers.max()), float(cut.sum())
            median = float(np.median(cut))
            cuts.append(Cut(reason=reason, steps=len(where), first=first, last=last, median=median, total=total))
    return cuts


def _bootstrap(values: Floats) -> tuple[float | None, float | None, float | None]:
    """Returns (low, high, standard error) of the median, from 2000 resamples with a fixed seed; None below three values."""
    if len(values) < LEAST:
        return None, None, None
    medians = resampled(values, _RESAMPLES, 0)
    low, high = np.quantile(medians, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high), float(medians.std())
