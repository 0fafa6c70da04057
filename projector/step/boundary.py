"""What passes between virtual pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence

from projector.collectives.placement import hop
from projector.frameworks.types import Resolved
from projector.layers.types import Collective

__all__ = ["activations"]


def activations(resolved: Resolved, placement: Sequence[Sequence[int]]) -> tuple[Collective | None, ...]:
    """The activation of one micro-batch from each virtual stage to the next, ``stages − 1`` of them; None where both stand
    on one rank (NVIDIA/Megatron-LM pipeline_parallel/schedules.py shapes): over the node's links, the network or between
    pods, as the ranks of the two stages lie. ``placement``: the stages of each rank. Gradients are as large."""
    workload, recipe = resolved.workload, resolved.workload.recipe
    rank_of = {stage: rank for rank, own in enumerate(placement) for stage in own}
    tokens = recipe.seq_length * recipe.micro_batch_size / recipe.cp / (recipe.tp if recipe.sequence_parallel else 1)
    nbytes = tokens * workload.model.hidden_size * 2.0

    def message(stage: int) -> Collective | None:
        here, there = rank_of[stage], rank_of[stage + 1]
        if here == there:
            return None
        group = hop(here, there, workload.gpus // recipe.pp, resolved.node_ranks, resolved.pod_ranks)
        return Collective(name="p2p", kind="send_recv", group=group, bytes=nbytes)

    return tuple(message(stage) for stage in range(len(rank_of) - 1))
