"""What dispatchers share: names, the wait for the counts of rows, what an exchange runs beside, the exchange itself."""

from __future__ import annotations

from projector.mechanism import mechanism
from projector.mechanisms.dispatch.routing import Routed
from projector.operators.rank import Rank
from projector.operators.types import Collective, HostWork, Operator
from projector.size import most

MOE = frozenset({"moe"})
PREPROCESS = MOE | {"moe_preprocess"}

FC1, FC2 = ("shared.fc1", "shared.act"), ("shared.fc2",)
FC1_BACKWARD = ("shared.fc1.dgrad", "shared.act.bwd", "shared.fc1.wgrad")
FC2_BACKWARD = ("shared.fc2.dgrad", "shared.fc2.wgrad")


@mechanism(off=())
def counts_read(r: Routed, lo: Rank, sync_free_from: int) -> tuple[Operator, ...]:
    """The host reads how many rows arrive, unless shapes are fixed or a sync-free stage keeps counts on the device."""
    if r.fixed or (lo.recipe.sync_free_stage or 0) >= sync_free_from:
        return ()
    return (HostWork(name="moe.counts", sync=True),)


def behind(lo: Rank, beside_shared: tuple[str, ...]) -> tuple[str, ...]:
    """Shared experts; what a neighbouring micro-batch offers instead is :mod:`projector.step.neighbours`' to say."""
    if lo.recipe.overlap_moe_expert_parallel_comm:
        return ()
    return beside_shared if lo.recipe.moe_shared_expert_overlap else ()


def all_to_all(
    name: str, r: Routed, lo: Rank, beside: tuple[str, ...] = (), transport: str = "nccl"
) -> tuple[Collective, ...]:
    """Rows of all routed copies, of the fullest rank in the group."""
    if lo.recipe.ep == 1:
        return ()
    nbytes = lo.act * lo.hidden * most(r.sent, r.received / lo.recipe.etp)
    return (
        Collective(name=name, kind="all_to_all", group="ep", bytes=nbytes, hides_behind=beside, transport=transport),
    )
