"""Result rows as the observations that a calibration is fitted on. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from harness.calibrate.calibration import WHOLE, Observation
from harness.contracts.results import Row, RunFacts
from projector import experience

__all__ = ["entries", "of_rows", "shares_of"]


def of_rows(rows: Iterable[Row], facts: Mapping[str, RunFacts]) -> list[Observation]:
    """The projected rows of one predictor before any fit, by GPU, architecture, vendor and all."""
    made = []
    for row in rows:
        if row.projected_step_seconds is None:
            continue
        fact = facts[row.run_id]
        made.append(
            Observation(
                run_id=row.run_id,
                family=row.family,
                framework=row.framework,
                levels=(row.gpu, f"arch:{fact.arch}", f"vendor:{fact.vendor}", "all"),
                log_ratio=math.nan if row.error is None else math.log1p(row.error),
                gpu=row.gpu,
                shares=shares_of(row.breakdown, row.projected_step_seconds, row.precision),
                assumed=entries(row.assumed),
            )
        )
    return made


def shares_of(breakdown: Mapping[str, float], step_seconds: float, precision: str) -> tuple[float, ...]:
    """Shares of the step by term; a projection without parts is one part."""
    return experience.shares(breakdown, step_seconds, precision) if breakdown else WHOLE


def entries(assumed: str) -> int:
    """How many entries the ``assumed`` column of a row lists."""
    return len([word for word in assumed.split("; ") if word])
