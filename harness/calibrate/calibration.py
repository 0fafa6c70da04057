"""Observations of measured over projected step time, and the simplest law of them: one factor per key.

The factor is exp of the weighted median of ln(measured / projected) step time; every (family × framework) cell has
the same weight, so that a table of many rows does not drown the others. Laws that pool the levels, and how one is
chosen: see :mod:`harness.calibrate.laws` and :mod:`harness.calibrate.folds`. All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.calibrate import weights
from harness.contracts.estimates import Factor
from projector.experience import TERMS

__all__ = ["WHOLE", "Observation", "factor_of", "mean_factor"]

#: Shares of a step of which no part is known.
WHOLE = (1.0, *([0.0] * (len(TERMS) - 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One comparable row: ``log_ratio`` = ln(measured / projected step time), that is ln(projected / measured TGS); one
    that is not finite: projected, not measured.

    ``levels``: keys from finest to coarsest. ``shares``: of the projected step, by term
    (:data:`projector.experience.TERMS`); a projection that says nothing of its parts is off in all of them alike.
    ``assumed``: entries that its configuration lacked.
    """

    run_id: str
    family: str
    framework: str
    levels: tuple[str, ...]
    log_ratio: float
    gpu: str = ""
    shares: tuple[float, ...] = WHOLE
    assumed: int = 0

    @property
    def cell(self) -> tuple[str, str, str]:
        """What weighs as one."""
        return (self.family, self.gpu, self.framework)


def factor_of(observations: Sequence[Observation], key: str, level: int = 0) -> Factor:
    """The factor of a non-empty set of observations, each (family × framework) cell weighing the same."""
    logs = [o.log_ratio for o in observations]
    centre = weights.median(logs, weights.by_cell(o.cell for o in observations))
    return _factor(observations, key, level, centre, [centre] * len(logs))


def mean_factor(observations: Sequence[Observation], logs: Sequence[float]) -> Factor:
    """What estimates (ln) come to over the rows of one finest key: their mean over cells, and the spread they leave."""
    mean = float(np.average(logs, weights=weights.by_cell(o.cell for o in observations)))
    return _factor(observations, observations[0].levels[0], 0, mean, logs)


def _factor(rows: Sequence[Observation], key: str, level: int, centre: float, logs: Sequence[float]) -> Factor:
    left = np.abs([o.log_ratio - log for o, log in zip(rows, logs, strict=True)])
    cells = [o.cell for o in rows]
    return Factor(
        key=key,
        value=math.exp(centre),
        rows=len(rows),
        cells=len(set(cells)),
        spread=weights.median(left, weights.by_cell(cells)),
        level=level,
    )
