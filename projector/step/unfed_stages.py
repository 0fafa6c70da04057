"""The cost of a pipeline's fill where every stage computes in every iteration, on zeros until real input arrives.

A pipeline written as one program for all stages (a scan over iterations whose stages shift their outputs to each other:
AI-Hypercomputer/maxtext MaxText/layers/pipeline.py) starts from buffers of zeros. A router scores all experts of a zero
alike, so that every token of such a stage goes to the same few experts, on one rank of the expert-parallel group;
without a capacity factor that rank computes the rows of the whole group. Stages exchange after each iteration, so all
wait for it, in each of the pp − 1 iterations before the last stage has real input, and again in their backward.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from projector.frameworks.types import Resolved
from projector.mechanism import mechanism
from projector.size import Floats

_ALL_ON_ONE = 1e9  # dispersion of expert loads beyond which the fullest rank has everything


@mechanism(off=None)
def fed_with_zeros(resolved: Resolved) -> Resolved | None:
    """Returns the run as a stage without input executes it; None where such a stage waits or its experts take no more."""
    recipe, model = resolved.workload.recipe, resolved.workload.model
    computes = resolved.execution.pipeline.idle_stages_compute and recipe.pp > 1 and model.moe is not None
    if not computes or recipe.ep == 1 or recipe.moe_expert_capacity_factor is not None:
        return None
    skewed = replace(recipe, moe_router_force_load_balancing=False, mock_data=True)
    return replace(
        resolved,
        workload=replace(resolved.workload, recipe=skewed),
        execution=resolved.execution.evolve(dispatch={"dispersion": _ALL_ON_ONE}),
    )


def seconds(full: Floats, empty: Floats, pp: int) -> float:
    """Returns the seconds that a step waits for stages without input. ``full``, ``empty`` ``[≥ 3, stages]``: seconds of
    forward, backward without the weight gradients, and weight gradients of every virtual stage with input, and without."""
    excess = [np.maximum(0.0, empty[part].sum(axis=0) - full[part].sum(axis=0)) for part in (slice(0, 1), slice(1, 3))]
    return (pp - 1) * float((excess[0] + excess[1]).max(initial=0.0))
