"""Failures against checkpoints: how often to save, how much longer a run takes, and a simulation that gives the same.

Failures come at random (exponential gaps of mean μ) and one of any node stops the job. A save stops training for C
after every τ of work; a failure loses what was done since the last save, and R passes until training goes on (it may
fail again meanwhile). Then a run of W seconds of work lasts, in expectation,

    μ · exp(R/μ) · (exp((τ + C)/μ) − 1) · W/τ

(J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006, equation
13). The best τ = μ·x solves (1 − x)·exp(x) = exp(−C/μ). Young (CACM 17(9), 1974): τ ≈ √(2Cμ); Daly: its expansion in
√(C/2μ).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from projector.dataclass import dataclass

Numbers: TypeAlias = Any  # a float, or an array of them
TAIL = 0.05  # share of draws on each side of an interval
_NEWTON = 64
_FAILURES = 100_000
_MOST = 2**22  # gaps between failures that are drawn at once


def young(save: Numbers, mean: Numbers) -> Numbers:
    """Returns the best seconds of work between saves, to first order."""
    return (2.0 * save * mean) ** 0.5


def daly(save: float, mean: float) -> float:
    """Returns :func:`young` with the next two orders of the expansion; ``mean`` where a save takes at least twice that."""
    if save >= 2.0 * mean:
        return mean
    small = float(np.sqrt(save / (2.0 * mean)))
    return float(young(save, mean)) * (1.0 + small / 3.0 + small**2 / 9.0) - save


def interval(save: Numbers, mean: Numbers) -> Numbers:
    """Returns the best seconds of work between saves: Newton's method from above, where it converges from one side."""
    share = np.asarray(save, dtype=np.float64) / mean
    x = np.minimum(np.sqrt(2.0 * share), 1.0)
    for _ in range(_NEWTON):
        rest = np.expm1(x) - x * np.exp(x) - np.expm1(-share)
        x = np.maximum(x + rest / (x * np.exp(x)), np.finfo(np.float64).tiny)
    return x * mean


def stretch(work: Numbers, save: Numbers, restart: Numbers, mean: Numbers) -> Numbers:
    """Returns the expected wall time over working time, with a save after every ``work`` seconds; infinite on overflow."""
    with np.errstate(over="ignore"):
        return np.exp(restart / mean) * np.expm1((work + save) / mean) * mean / work


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A simulation of ``runs`` runs. ``goodput``: working over wall time, their mean; ``low``, ``high``: 5 and 95 % of
    them (luck alone); ``failures``: mean of a run."""

    runs: int
    goodput: float
    low: float
    high: float
    failures: float


def simulate(total: float, work: float, save: float, restart: float, mean: float, *, seed: int, runs: int) -> Simulated:
    """Simulates ``runs`` runs of ``total`` seconds of work, rounded up to whole intervals, one failure after the other.

    Between two failures lies a restart (not before the first), then whole intervals of work with their saves; the rest
    is lost. A run of more than :data:`_FAILURES` expected failures is simulated as far as these reach.
    """
    failures_per_interval = work * stretch(work, save, restart, mean) / mean
    parts = max(1, min(int(np.ceil(total / work)), int(_FAILURES / failures_per_interval)))
    expected = parts * failures_per_interval
    draws = int(expected + 10.0 * np.sqrt(expected) + 16.0)
    rng = np.random.default_rng(seed)
    walls, failures = [], []
    at_once = max(1, int(_MOST / draws))
    for start in range(0, runs, at_once):
        gaps = rng.exponential(mean, (min(at_once, runs - start), draws))
        late = np.full_like(gaps, restart)
        late[:, 0] = 0.0
        whole = np.floor(np.maximum(gaps - late, 0.0) / (work + save))
        done = np.cumsum(whole, axis=1)
        last = np.minimum((done < parts).sum(axis=1), draws - 1)  # the gap in which the run ends
        at = np.arange(len(gaps))
        rest = (parts - done[at, last] + whole[at, last]) * (work + save)
        walls.append(np.cumsum(gaps, axis=1)[at, last] - gaps[at, last] + late[at, last] + rest)
        failures.append(last)
    goodput = parts * work / np.concatenate(walls)
    low, high = (float(end) for end in np.quantile(goodput, (TAIL, 1.0 - TAIL)))
    mean = float(np.concatenate(failures).mean())
    return Simulated(runs=runs, goodput=float(goodput.mean()), low=low, high=high, failures=mean)
