"""What the fill of a pipeline costs where every stage computes in every iteration, on zeros until real input arrives.

A pipeline written as one program for all stages (a scan over iterations whose stages shift their outputs to each other:
AI-Hypercomputer/maxtext MaxText/layers/pipeline.py) starts from buffers of zeros. A router scores all experts of a zero
alike, so that every token of such a stage goes to the same few experts, on one rank of the expert-parallel group; without a
capacity factor that rank computes the rows of the whole group. Stages exchange after each iteration, so all wait for it, in
each of the pp − 1 iterations before the last stage has real input, and again in their backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from projector.frameworks.types import Resolved
from projector.mechanism import mechanism
from projector.step.stages import StageTime

_ALL_ON_ONE = 1e9  # dispersion of expert loads beyond which the fullest rank has everything


@mechanism(off=None)
def idle(resolved: Resolved) -> Resolved | None:
    """The workload as a stage without input runs it; None where an idle stage waits or its experts take no more."""
    recipe, model = resolved.workload.recipe, resolved.workload.model
    busy = resolved.execution.pipeline.idle_stages_compute and recipe.pp > 1 and model.moe is not None
    if not busy or recipe.ep == 1 or recipe.moe_expert_capacity_factor is not None:
        return None
    routed = replace(recipe, moe_router_force_load_balancing=False, mock_data=True)
    return replace(
        resolved,
        workload=replace(resolved.workload, recipe=routed),
        execution=resolved.execution.but(dispatch={"dispersion": _ALL_ON_ONE}),
    )


def seconds(times: Sequence[StageTime], without_input: Sequence[StageTime], pp: int) -> float:
    """Seconds that a step waits for stages without input; both by virtual stage, in pipeline order."""
    extra = [
        max(0.0, empty.forward.seconds - full.forward.seconds)
        + max(0.0, empty.backward.seconds - full.backward.seconds)
        for full, empty in zip(times, without_input, strict=True)
    ]
    return (pp - 1) * max(extra, default=0.0)
