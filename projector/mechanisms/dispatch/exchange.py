"""Common parts of dispatchers: names, the wait for the counts of rows, what hides an exchange, the exchange itself."""

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
def counts_read(r: Routed, view: Rank, sync_free_from: int) -> tuple[Operator, ...]:
    """Returns the host's wait for the number of arriving rows, unless shapes are fixed or counts stay on the device."""
    if r.fixed or (view.recipe.sync_free_stage or 0) >= sync_free_from:
        return ()
    return (HostWork("moe.counts", sync=True),)


def hiding_operators(view: Rank, beside_shared: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the operators of shared experts that hide an exchange, unless another micro-batch hides it."""
    if view.recipe.overlap_moe_expert_parallel_comm:
        return ()
    return beside_shared if view.recipe.moe_shared_expert_overlap else ()


def all_to_all(
    name: str, r: Routed, view: Rank, beside: tuple[str, ...] = (), transport: str = "nccl"
) -> tuple[Collective, ...]:
    """Returns the exchange of all routed copies, with the rows of the fullest rank in the group."""
    if view.recipe.ep == 1:
        return ()
    nbytes = view.act * view.hidden * most(r.sent, r.received / view.recipe.etp)
    return (Collective(name, "all_to_all", "ep", nbytes, hides_behind=beside, transport=transport),)


def permute_launches(view: Rank) -> tuple[int, int, int]:
    """Returns launches of (permute, its reverse, the reverse's gradient): fused kernels or argsort and index selects."""
    return (4, 1, 1) if fused_permute(view) else (9, 3, 3)


def fused_permute(view: Rank) -> bool:
    return bool(view.recipe.moe_permute_fusion) or (view.recipe.sync_free_stage or 0) >= 1 or view.compiled


def copies_kind(view: Rank) -> str:
    """Returns the kind of the kernels that sum the copies of a token: scatter-additions without the fused kernel.

    NVIDIA/Megatron-LM core/transformer/moe/moe_utils.py: ``unpermute`` calls ``scatter_add_``, and the gradient of the
    ``index_select`` of ``permute`` is ``index_add``. Each copy is read and added atomically to the token's row, which
    stays in the last cache level.
    """
    return "permute" if fused_permute(view) else "scatter"


def sum_copies(name: str, copies: float, tokens: float, launches: int, view: Rank) -> Stream:
    """Returns the sum of copies of tokens: written once per token by the fused kernel, once per copy by atomics."""
    kind = copies_kind(view)
    return copy(name, kind, copies, tokens if kind == "permute" else copies, launches, view)


def copy(name: str, kind: str, read_rows: float, write_rows: float, launches: int, view: Rank) -> Stream:
    row = view.act * view.hidden
    return Stream(name, kind, row * read_rows, row * write_rows, launches=launches)


@mechanism(off=())
def scatter_adds(r: Routed, view: Rank) -> tuple[Stream, ...]:
    """Returns a gather's gradients as a compiler writes them: rows of the whole buffer added into their sources."""
    count = view.recipe.moe_dispatch_scatter_adds or 0
    row = view.act * view.hidden * r.held
    return tuple(Stream(f"moe.scatter_add{i}", "scatter", 2 * row, row) for i in range(count))
