"""What would another configuration gain? Every two runs of a group, measured against projected. Pure functions.

A gain is the throughput of the run that measured faster over the other's: 1 or more as measured, below 1 where the
projection puts the two in the wrong order. Pairs that the measurement does not tell apart
(:data:`harness.score.ranking.NOISE`, or the spread that their source states) are left out; a factor of calibration that both
runs share cancels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.contracts import frame
from harness.score.ranking import NOISE, SAME
from harness.score.switches import usable
from projector.dataclass import dataclass

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gains:
    """One entry a pair: ratios of throughput; ``groups``: how many hold at least one."""

    measured: NDArray[np.float64]
    projected: NDArray[np.float64]
    groups: int

    @property
    def tied(self) -> NDArray[np.bool_]:
        """Projected equal: no opinion."""
        made: NDArray[np.bool_] = np.abs(self.projected - 1.0) <= SAME
        return made

    @property
    def right(self) -> NDArray[np.bool_]:
        made: NDArray[np.bool_] = (self.projected > 1.0) & ~self.tied
        return made

    @property
    def typical_error(self) -> float | None:
        """Median of |projected / measured − 1| of the gain; None without pairs."""
        return float(np.median(np.abs(self.projected / self.measured - 1.0))) if len(self.measured) else None


def gains(rows: pd.DataFrame) -> Gains:
    """Of the rows of one predictor and one fit that have a group, a measured and a projected throughput."""
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
        measured=np.concatenate([empty, *measured]),
        projected=np.concatenate([empty, *projected]),
        groups=len(measured),
    )
