"""Seconds that no step can beat, known before its schedule is evaluated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from projector.frameworks.types import Resolved
from projector.memory.holding import placement
from projector.pipeline.bounds import lower_bound
from projector.step.cycle import between_steps
from projector.step.stages import splits

Floats = NDArray[np.float64]
#: Of every virtual stage ``[…, stages]``: forward, backward without and of the weight gradients where these are apart.
Seconds = tuple[Floats, Floats, Floats]


def shortest(runs: Sequence[Resolved], stages: Sequence[Seconds]) -> Floats:
    """Returns ``[runs]``: seconds that a step takes at least, in whatever order, by the seconds of its ``stages``."""
    found = np.array([between_steps(run) for run in runs])
    alike: dict[tuple[object, bool], list[int]] = {}
    for i, run in enumerate(runs):
        alike.setdefault((placement(run), splits(run.workload.recipe)), []).append(i)
    for (where, split), rows in alike.items():
        forward, inputs, weight = (np.stack([stages[i][part] for i in rows]) for part in range(3))
        microbatches = np.array([runs[i].workload.num_microbatches for i in rows])
        found[rows] += lower_bound(where, microbatches, forward, inputs, weight, split=split)  # type: ignore[arg-type]
    return found
