"""What dispatchers share: names, the wait for the counts of rows, what an exchange runs beside, the exchange itself."""

from __future__ import annotations

from projector.mechanism import mechanism
from projector.mechanisms.dispatch.routing import Routed
from projector.operators.rank import Rank
from projector.operators.types import Collective, HostWork, Operator, Stream
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


def permute_launches(lo: Rank) -> tuple[int, int, int]:
    """Launches of (permute, its reverse, the gradient of the reverse): fused kernels or argsort and index selects."""
    return (4, 1, 1) if fused_permute(lo) else (9, 3, 3)


def fused_permute(lo: Rank) -> bool:
    return bool(lo.recipe.moe_permute_fusion) or (lo.recipe.sync_free_stage or 0) >= 1 or lo.compiled


def copies_kind(lo: Rank) -> str:
    """Kind of the kernels that sum the copies of a token: without the fused kernel they are scatter-additions.

    NVIDIA/Megatron-LM core/transformer/moe/moe_utils.py: ``unpermute`` calls ``scatter_add_``, and the gradient of the
    ``index_select`` of ``permute`` is ``index_add``. Each copy is read and added atomically to the token's row, which
    stays in the last cache level.
    """
    return "permute" if fused_permute(lo) else "scatter"


def sum_copies(name: str, copies: float, tokens: float, launches: int, lo: Rank) -> Stream:
    """Copies of tokens summed: written once per token by the fused kernel, once per copy by atomics."""
    kind = copies_kind(lo)
    return copy(name, kind, copies, tokens if kind == "permute" else copies, launches, lo)


def copy(name: str, kind: str, read_rows: float, write_rows: float, launches: int, lo: Rank) -> Stream:
    row = lo.act * lo.hidden
    return Stream(name=name, kind=kind, read=row * read_rows, write=row * write_rows, launches=launches)


@mechanism(off=())
def scatter_adds(r: Routed, lo: Rank) -> tuple[Stream, ...]:
    """Gradients of a gather as a compiler writes them: rows of the whole buffer added into their sources."""
    count = lo.recipe.moe_dispatch_scatter_adds or 0
    row = lo.act * lo.hidden * r.held
    return tuple(Stream(name=f"moe.scatter_add{i}", kind="scatter", read=2 * row, write=row) for i in range(count))
