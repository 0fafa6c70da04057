"""Bytes of a projection as the views of its timeline need them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from projector.memory.chunks import chunk_memory
from projector.memory.parameters import contents, stage
from projector.memory.transients import unsharded
from projector.projection import Projection
from projector.workload.composition import compositions


def kept_by_stage(made: Projection) -> NDArray[np.float64]:
    """``[stages]``: bytes that one micro-batch keeps on each virtual stage between forward and backward."""
    workload = made.resolved.workload
    _, kinds = compositions(workload.model, workload.recipe)
    out = np.zeros(len(kinds))
    for own in made.timeline.compiled.schedule.placement:
        gathered = unsharded(made.resolved, stage(made.resolved, contents(tuple(kinds[v] for v in own))))
        for v in own:
            out[v] = chunk_memory(made.resolved, kinds[v], v == 0, v == len(kinds) - 1, gathered).saved
    return out


def static_by_rank(made: Projection) -> NDArray[np.float64]:
    """``[pp]``: bytes on each rank that never leave."""
    return np.array([rank.static for rank in made.memory.ranks])
