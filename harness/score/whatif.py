"""Measures what another configuration gains: every two runs of a group, measured against projected. Pure functions.

A gain is the throughput of the run that measured faster over the other's: 1 or more as measured, below 1 where the
projection puts the two in the wrong order. Pairs that the measurement does not tell apart
(:data:`harness.score.ranking.NOISE`, or the spread that their source states) are left out; a factor of calibration that
both runs share cancels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.contracts import frame
from harness.score import resample
from harness.score.accuracy import eligible
from harness.score.changes import Pair
from harness.score.ranking import NOISE, SAME, group_rankings, summary, tau_b
from harness.score.switches import usable
from projector.dataclass import dataclass
from projector.io.rows import grouped

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gains:
    """The gains of all pairs as ratios of throughput; ``groups``: number of groups with at least one pair."""

    measured: NDArray[np.float64]
    projected: NDArray[np.float64]
    groups: int

    @property
    def tied(self) -> NDArray[np.bool_]:
        """Tells for each pair whether the two are projected equal: no opinion."""
        equal: NDArray[np.bool_] = np.abs(self.projected - 1.0) <= SAME
        return equal

    @property
    def right(self) -> NDArray[np.bool_]:
        ahead: NDArray[np.bool_] = (self.projected > 1.0) & ~self.tied
        return ahead

    @property
    def typical_error(self) -> float | None:
        """Returns the median of |projected / measured − 1| of the gain; None without pairs."""
        return float(np.median(np.abs(self.projected / self.measured - 1.0))) if len(self.measured) else None


def gains(rows: pd.DataFrame) -> Gains:
    """Returns the gains in rows of one predictor and fit that have a group, a measured and a projected throughput."""
    known = usable(rows[rows["group"] != ""])
    measured: list[NDArray[np.float64]] = []
    projected: list[NDArray[np.float64]] = []
    for _, members in frame.parts(known, ["group"]):
        real, modelled = members["measured_tgs"].to_numpy(), members["projected_tgs"].to_numpy()
        noise = np.maximum(NOISE, members["rel_std"].fillna(0.0).to_numpy(dtype=float))
        slow, fast = np.nonzero(real[:, None] * (1.0 + np.maximum(noise[:, None], noise)) < real)
        if len(slow):
            measured.append(real[fast] / real[slow])
            projected.append(modelled[fast] / modelled[slow])
    empty = np.zeros(0)
    return Gains(
        measured=np.concatenate([empty, *measured]), projected=np.concatenate([empty, *projected]), groups=len(measured)
    )


# The worth of a mechanism: errors of uncorrected projections with it on against those with it off. A source weighs as
# one, whatever its number of rows.
LEVEL = 0.95
#: Change of a source's mean |error| below which it is neither better nor worse: half a point.
CLEAR = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The changes that switching a mechanism off makes, positive where the mechanism helps (but for ``tau``). ``error``:
    of the mean over sources of their mean |error| of throughput, with its bootstrap interval over sources; ``moved``:
    rows whose throughput changes, ``touched``: their sources; ``helped``, ``hurt``: sources that are clearly worse and
    better without the mechanism, most first; ``lost``: rows that then have no projection; ``memory``: of the mean
    |error| of peaks; ``whatif``: of the median error of gains inside a group. None where there is nothing to compare."""

    error: float
    interval: tuple[float, float] | None
    moved: int
    touched: tuple[str, ...]
    helped: tuple[str, ...]
    hurt: tuple[str, ...]
    lost: int
    tau: float | None
    memory: float | None
    whatif: float | None


def worth(on: pd.DataFrame, off: pd.DataFrame, publisher: Mapping[str, str]) -> Worth:
    """Returns the worth of a mechanism from rows of one predictor and fit, with it on and off. ``publisher``: by run id."""
    before, after = (eligible(rows).set_index("run_id")["error"].dropna() for rows in (on, off))
    both = before.index.intersection(after.index)
    was, now = before[both], after[both]
    changes = (now.abs() - was.abs()).groupby([publisher[run] for run in both]).mean()
    order = changes.sort_values()
    moved = both[~np.isclose(now, was, rtol=0.0, atol=1e-6)]
    return Worth(
        error=float(changes.mean()) if len(changes) else 0.0,
        interval=resample.of_mean(changes.tolist(), LEVEL),
        moved=len(moved),
        touched=tuple(sorted({publisher[run] for run in moved})),
        helped=tuple(order[order > CLEAR].index[::-1]),
        hurt=tuple(order[order < -CLEAR].index),
        lost=len(before.index.difference(after.index)),
        tau=_change(_tau(on), _tau(off)),
        memory=_change(_memory(on), _memory(off)),
        whatif=_change(gains(on).typical_error, gains(off).typical_error),
    )


def _change(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _tau(rows: pd.DataFrame) -> float | None:
    return summary(group_rankings(rows)).tau


def _memory(rows: pd.DataFrame) -> float | None:
    errors = rows["memory_error"].dropna().abs()
    return float(errors.mean()) if len(errors) else None


# The score of a projection without error: measurements repeat to a few per cent, and an order inside groups of runs
# that lie closer than that cannot be right.
#
# The truth behind a measurement is not known; two stand-ins bracket it. With the *projection* as the truth the gaps inside
# a group lack what no projector sees; with the *measurement* as the truth they hold its noise already and are too wide.
_DRAWS = 40
_SEED = 20240607
_NORMAL = 0.67449  # median of |x| of a standard normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The mean tau-b over groups of a projection without error, where a measurement repeats to ``spread`` (standard
    deviation, relative): ``low`` with the projection as the truth, ``high`` with the measurement."""

    spread: float
    low: float
    high: float


def repeats(found: Sequence[Pair]) -> tuple[float, int, int] | None:
    """Returns the relative standard deviation of one measurement, and the pairs and sources that it rests on: pairs that
    differ in nothing, the median over sources of each one's median. The median of |x − y| of two normal draws is 0.674
    √2 of their deviation."""
    same = [pair for pair in found if not pair.seen and not pair.unseen]
    if not same:
        return None
    by_publisher = grouped((pair.publisher, abs(float(np.log(pair.measured)))) for pair in same)
    middle = float(np.median([np.median(off) for off in by_publisher.values()]))
    return middle / (_NORMAL * 2**0.5), len(same), len(by_publisher)


def ceiling(rows: pd.DataFrame, spread: float) -> Ceiling | None:
    """Returns the ceiling of the groups of ``rows`` (one predictor, one fit); None where no group has a measured order."""
    generator = np.random.default_rng(_SEED)
    low: list[float] = []
    high: list[float] = []
    for _, members in frame.parts(usable(rows[rows["group"] != ""]), ["group"]):
        measured = members["measured_tgs"].to_numpy(dtype=float)
        if len(measured) > 1 and tau_b(measured, measured) is not None:
            noise = np.exp(spread * generator.standard_normal((_DRAWS, len(measured))))
            low += _mean_tau(members["projected_tgs"].to_numpy(dtype=float), noise)
            high += _mean_tau(measured, noise)
    return Ceiling(spread=spread, low=float(np.mean(low)), high=float(np.mean(high))) if low and high else None


def _mean_tau(truth: NDArray[np.float64], noise: NDArray[np.float64]) -> list[float]:
    """Returns the mean over draws of tau-b between a truth and its measurement; empty where every draw is tied."""
    taus = [tau for drawn in truth * noise if (tau := tau_b(drawn, truth)) is not None]
    return [float(np.mean(taus))] if taus else []
