"""What estimates of observations come to by key. Pure.

The laws that estimate them, and how one is chosen: :mod:`harness.calibrate.hierarchy` and :mod:`harness.calibrate.folds`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.calibrate import weights
from harness.contracts.estimates import Factor, Observation


def mean_factor(observations: Sequence[Observation], logs: Sequence[float]) -> Factor:
    """What estimates (ln) come to over the rows of one finest key: their mean over cells, and the spread they leave."""
    cells = [o.cell for o in observations]
    weight = weights.by_cell(cells)
    left = np.abs([o.log_ratio - log for o, log in zip(observations, logs, strict=True)])
    return Factor(
        key=observations[0].levels[0],
        value=math.exp(float(np.average(logs, weights=weight))),
        rows=len(observations),
        cells=len(set(cells)),
        spread=weights.median(left, weight),
    )
