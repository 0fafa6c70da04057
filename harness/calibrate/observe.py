"""Result rows as the observations that a calibration is fitted on. Pure functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harness.contracts import frame
from harness.contracts.estimates import Observation
from harness.contracts.runs import BREAKDOWN
from harness.contracts.sources import publisher
from projector import experience

if TYPE_CHECKING:
    import pandas as pd


def of_rows(rows: pd.DataFrame) -> list[Observation]:
    """The projected rows of one predictor before any fit, by GPU, architecture, vendor and all."""
    return [
        Observation(
            run_id=row.run_id,
            family=row.family,
            framework=row.framework,
            levels=(row.gpu, f"arch:{row.arch}", f"vendor:{row.vendor}", "all"),
            log_ratio=math.log1p(row.error),
            gpu=row.gpu,
            traits=experience.traits(
                row.projected_step_seconds,
                {name: seconds for name in BREAKDOWN if not math.isnan(seconds := getattr(row, name))},
                entries(row.assumed),
                int(row.differs.get("cp", 1)),
            ),
            source=publisher(row.source),
        )
        for row in frame.lines(rows[rows["projected_step_seconds"].notna()])
    ]


def entries(assumed: str) -> list[str]:
    """What the ``assumed`` column of a row lists."""
    return [word for word in assumed.split("; ") if word]
