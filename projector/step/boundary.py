"""What passes between virtual pipeline stages, and between the copies of one."""

from __future__ import annotations

from projector.collectives.placement import hop
from projector.frameworks.types import Resolved
from projector.operators.types import Collective
from projector.operators.weights import Held
from projector.pipeline.types import Schedule

__all__ = ["activations", "copies"]


def activations(resolved: Resolved, schedule: Schedule) -> tuple[Collective | None, ...]:
    """The activation of one micro-batch from each virtual stage to the next, ``stages − 1`` of them; None where both stand
    on one rank (NVIDIA/Megatron-LM pipeline_parallel/schedules.py shapes): over the node's links, the network or between
    pods, as the ranks of the two stages lie. Gradients are as large."""
    workload, recipe = resolved.workload, resolved.workload.recipe
    tokens = recipe.seq_length * recipe.micro_batch_size / recipe.cp / (recipe.tp if recipe.sequence_parallel else 1)
    nbytes = tokens * workload.model.hidden_size * 2.0

    def message(stage: int) -> Collective | None:
        (here, _), (there, _) = schedule.home[stage : stage + 2]
        if here == there:
            return None
        group = hop(here, there, workload.gpus // recipe.pp, resolved.node_ranks, resolved.pod_ranks)
        return Collective(name="p2p", kind="send_recv", group=group, bytes=nbytes)

    return tuple(message(stage) for stage in range(len(schedule.home) - 1))


def copies(resolved: Resolved, schedule: Schedule, rank: int, held: Held) -> tuple[Collective, ...]:
    """The gradients ``held`` of a rank whose stages stand on another one too: each of the two sends the other its shard."""
    if schedule.copies == 1:
        return ()
    workload, own = resolved.workload, set(schedule.placement[rank])
    other = next(r for r, stages in enumerate(schedule.placement) if r != rank and set(stages) == own)
    sharing = resolved.execution.data_parallel
    nbytes = sharing.reduce_bytes * sharing.resident("states", workload, held.dense, held.expert)
    group = hop(rank, other, workload.gpus // workload.recipe.pp, resolved.node_ranks, resolved.pod_ranks)
    return (Collective(name="grad_copies", kind="send_recv", group=group, bytes=nbytes),)
