"""Token dispatch to experts and its combination: permutation, exchange, sorting by local expert, host waits.

``alltoall`` sends every routed copy; ``flex`` (DeepEP, HybridEP) sends a token once to each rank that needs it and once
to each node; ``allgather`` sends every token to every rank. Kernels counted from NVIDIA/Megatron-LM@d98e8a64dd
core/transformer/moe/{token_dispatcher,fused_a2a,moe_utils}.py; DeepEP from deepseek-ai/DeepEP@dd758ca.
"""

from __future__ import annotations

from math import ceil

from projector.layers.dispatch_buffers import buffered
from projector.layers.dispatch_einsum import einsum_dispatch_combine
from projector.layers.local import Local
from projector.layers.part import Part
from projector.layers.permutation import (
    CHUNK_BACKWARD_US,
    CHUNK_US,
    chunks,
    copy,
    permute_launches,
    scatter_adds,
    sum_copies,
)
from projector.layers.routing import Routed, distinct_destinations
from projector.layers.types import Collective, HostWork, Operator, Stream
from projector.workload.model import MoE

__all__ = ["dispatch_combine"]

MOE = frozenset({"moe"})
PREPROCESS = MOE | {"moe_preprocess"}


def dispatch_combine(moe: MoE, r: Routed, lo: Local) -> tuple[tuple[Part, ...], Part]:
    """(dispatch, combine): what runs between router and experts and between experts and the sum."""
    return buffered(*_exchanged(moe, r, lo), moe, r, lo)


def _exchanged(moe: MoE, r: Routed, lo: Local) -> tuple[tuple[Part, ...], Part]:
    if r.fixed and lo.execution.dispatch.einsum:
        return einsum_dispatch_combine(r, lo)
    how = lo.recipe.moe_token_dispatcher_type or "alltoall"
    if how == "allgather":
        return _allgather(r, lo)
    if how == "flex":
        return _flex(moe, r, lo)
    return _alltoall(moe, r, lo)


def _sync(r: Routed, lo: Local, sync_free_from: int) -> tuple[Operator, ...]:
    """The host reads how many rows arrive, unless shapes are fixed or a sync-free stage keeps counts on the device."""
    if r.fixed or lo.execution.runtime.whole_step or (lo.recipe.sync_free_stage or 0) >= sync_free_from:
        return ()
    return (HostWork(name="moe.counts", sync=True),)


def _behind(lo: Local, beside_shared: tuple[str, ...]) -> tuple[str, ...]:
    """Shared experts; what a neighbouring micro-batch offers instead is :mod:`projector.step.neighbours`' to say."""
    if lo.recipe.overlap_moe_expert_parallel_comm:
        return ()
    return beside_shared if lo.recipe.moe_shared_expert_overlap else ()


_FC1, _FC2 = ("shared.fc1", "shared.act"), ("shared.fc2",)
_FC1_BACKWARD = ("shared.fc1.dgrad", "shared.act.bwd", "shared.fc1.wgrad")
_FC2_BACKWARD = ("shared.fc2.dgrad", "shared.fc2.wgrad")


def _alltoall(moe: MoE, r: Routed, lo: Local) -> tuple[tuple[Part, ...], Part]:
    scatter, collect, spread = permute_launches(lo)
    into = copy("moe.permute", "permute", r.tokens, r.sent, scatter, lo)
    back = sum_copies("moe.unpermute", r.sent, r.tokens, collect, lo)
    sort = (copy("moe.sort", "permute", r.held, r.held, 2, lo),) if r.experts > 1 else ()
    unsort = (copy("moe.unsort", "permute", r.held, r.held, 2, lo),) if r.experts > 1 else ()
    behind, behind_backward = _behind(lo, _FC1), _behind(lo, _FC1_BACKWARD)
    prepare = Part(
        name="moe.permute",
        forward=(*_preprocess(moe, lo), into),
        # with the gradients of the routing weights, which travel beside the tokens
        backward_input=(sum_copies("moe.permute.bwd", r.sent, r.tokens, collect + 2, lo),),
        tags=PREPROCESS,
    )
    dispatch = Part(
        name="moe.dispatch",
        forward=(
            *_sync(r, lo, 4),
            *_exchange("moe.dispatch", r, lo, behind, probs=True),
            *_expert_tensor("moe.etp_ag", "all_gather", lo.act, r, lo),
            *sort,
            *chunks("moe.sort.chunks", CHUNK_US, r, lo, 2),
        ),
        backward_input=(
            *chunks("moe.sort.bwd.chunks", CHUNK_BACKWARD_US, r, lo, 2),
            *(copy("moe.sort.bwd", "permute", r.held, r.held, 2, lo) for _ in sort),
            *_expert_tensor("moe.etp_ag.bwd", "reduce_scatter", lo.act, r, lo),
            *_exchange("moe.dispatch.bwd", r, lo, behind_backward, probs=True),
        ),
        tags=MOE,
    )
    combine = Part(
        name="moe.combine",
        forward=(
            *chunks("moe.unsort.chunks", CHUNK_US, r, lo),
            *unsort,
            *_expert_tensor("moe.etp_rs", "reduce_scatter", 4.0, r, lo),
            *_exchange("moe.combine", r, lo, _behind(lo, _FC2)),
            back,
        ),
        backward_input=(
            copy("moe.unpermute.bwd", "permute", r.tokens, r.sent, spread, lo),
            *_exchange("moe.combine.bwd", r, lo, _behind(lo, _FC2_BACKWARD)),
            *_expert_tensor("moe.etp_rs.bwd", "all_gather", 4.0, r, lo),
            *(copy("moe.unsort.bwd", "permute", r.held, r.held, 2, lo) for _ in unsort),
            *chunks("moe.unsort.bwd.chunks", CHUNK_BACKWARD_US, r, lo),
        ),
        tags=MOE,
    )
    return (prepare, dispatch), combine


def _preprocess(moe: MoE, lo: Local) -> tuple[Operator, ...]:
    """Counts per expert, gathered over the expert group: tiny kernels and one tiny all-gather, all latency."""
    counts = Stream(
        name="moe.preprocess", kind="router", read=8.0 * moe.num_experts, write=8.0 * moe.num_experts, launches=10
    )
    if lo.recipe.ep * lo.recipe.etp == 1:
        return (counts,)
    group = "ep" if lo.recipe.ep > 1 else "etp"
    nbytes = 8.0 * moe.num_experts * lo.recipe.ep * lo.recipe.etp
    return (counts, Collective(name="moe.counts_ag", kind="all_gather", group=group, bytes=nbytes))


def _exchange(name: str, r: Routed, lo: Local, behind: tuple[str, ...], probs: bool = False) -> tuple[Operator, ...]:
    if lo.recipe.ep == 1:
        return ()
    transport = "one_shot" if lo.recipe.moe_all_to_all_kernel == "one_shot" else "nccl"
    nbytes = lo.act * lo.hidden * max(r.sent, r.received / lo.recipe.etp)
    tokens = Collective(
        name=name, kind="all_to_all", group="ep", bytes=nbytes, hides_behind=behind, transport=transport
    )
    if not probs:
        return (tokens,)
    weights = Collective(name=f"{name}_probs", kind="all_to_all", group="ep", bytes=4.0 * r.sent, hides_behind=behind)
    return (tokens, weights)


def _expert_tensor(name: str, kind: str, element: float, r: Routed, lo: Local) -> tuple[Operator, ...]:
    """Experts split over the expert-tensor group see each other's rows; their partial outputs are summed (fp32)."""
    if lo.recipe.etp == 1:
        return ()
    return (Collective(name=name, kind=kind, group="etp", bytes=element * lo.hidden * r.received),)


def _allgather(r: Routed, lo: Local) -> tuple[tuple[Part, ...], Part]:
    """Every rank gets every token of the group and keeps what its experts need."""
    ranks = lo.recipe.ep * lo.recipe.etp
    everyone = r.tokens * ranks
    group = "ep" if lo.recipe.ep > 1 else "etp"
    nbytes = lo.act * lo.hidden * everyone
    scatter, collect, spread = permute_launches(lo)

    def message(name: str, kind: str, launches: int = 1) -> tuple[Operator, ...]:
        if ranks == 1:
            return ()
        return (Collective(name=name, kind=kind, group=group, bytes=nbytes, launches=launches),)

    dispatch = Part(
        name="moe.dispatch",
        forward=(
            *message("moe.dispatch", "all_gather", 3),
            *_sync(r, lo, 4),
            copy("moe.permute", "permute", r.received, r.received, scatter, lo),
        ),
        backward_input=(
            sum_copies("moe.permute.bwd", r.received, everyone, collect, lo),
            *message("moe.dispatch.bwd", "reduce_scatter", 2),
        ),
        tags=MOE,
    )
    combine = Part(
        name="moe.combine",
        forward=(
            sum_copies("moe.unpermute", r.received, everyone, collect, lo),
            *message("moe.combine", "reduce_scatter"),
        ),
        backward_input=(
            *message("moe.combine.bwd", "all_gather"),
            copy("moe.unpermute.bwd", "permute", r.received, r.received, spread, lo),
        ),
        tags=MOE,
    )
    return (dispatch,), combine


def _flex(moe: MoE, r: Routed, lo: Local) -> tuple[tuple[Part, ...], Part]:
    """DeepEP and HybridEP: one message for each rank and node that a token reaches, sums on the way back."""
    backend = lo.recipe.moe_flex_dispatcher_backend or "deepep"
    hybrid = backend == "hybridep"
    everyone = r.tokens * lo.recipe.ep * lo.recipe.etp
    arrived = min(
        everyone, r.tokens * distinct_destinations(moe, lo.recipe.ep) * max(lo.recipe.etp, r.received / r.sent)
    )
    landed = everyone if r.held > r.rows else arrived
    behind = _behind(lo, _FC1)

    def message(name: str, launches: int, beside: tuple[str, ...]) -> tuple[Operator, ...]:
        if lo.recipe.ep * lo.recipe.etp == 1:
            return ()
        return (
            Collective(
                name=name,
                kind="all_to_all",
                group="ep" if lo.recipe.ep > 1 else "etp",
                bytes=lo.act * lo.hidden * arrived,
                hides_behind=beside,
                transport=backend,
                nodes_bytes=lo.act * lo.hidden * r.tokens * _other_nodes(moe, lo),
                launches=launches,
            ),
        )

    def local_copy(name: str, launches: int, back: bool) -> tuple[Operator, ...]:
        if hybrid:  # permutation is part of the dispatch kernels
            return ()
        if back:
            return (sum_copies(name, r.held, landed, launches, lo),)
        return (copy(name, "permute", landed, r.held, launches, lo),)

    # DeepEP's host spins on the count of rows that will arrive before it launches the dispatch (csrc/deep_ep.cpp); with a
    # receive buffer for the worst case (stage 2, and HybridEP) the host asks after it, at stage 3 never
    late = hybrid or (lo.recipe.sync_free_stage or 0) >= 2
    wait = _sync(r, lo, 3)
    layout = Stream(
        name="moe.layout", kind="router", read=8.0 * moe.num_experts * r.tokens, write=8.0 * r.tokens, launches=2
    )
    prepare = Part(name="moe.layout", forward=(layout,), tags=PREPROCESS)
    dispatch = Part(
        name="moe.dispatch",
        forward=(
            *(() if late else wait),
            *message("moe.dispatch", 2, behind),
            *(wait if late else ()),
            *local_copy("moe.permute", 5, False),
        ),
        backward_input=(
            *local_copy("moe.permute.bwd", 1, True),
            *scatter_adds(r, lo),
            *message("moe.dispatch.bwd", 1, _behind(lo, _FC1_BACKWARD)),
        ),
        tags=MOE,
    )
    combine = Part(
        name="moe.combine",
        forward=(*local_copy("moe.unpermute", 1, True), *message("moe.combine", 1, _behind(lo, _FC2))),
        backward_input=(
            *message("moe.combine.bwd", 1, _behind(lo, _FC2_BACKWARD)),
            *local_copy("moe.unpermute.bwd", 1, False),
        ),
        tags=MOE,
    )
    return (prepare, dispatch), combine


def _other_nodes(moe: MoE, lo: Local) -> float:
    """Expected nodes other than its own that one token reaches; expert ranks of a node are contiguous."""
    ranks = lo.recipe.ep * lo.recipe.etp
    nodes = ceil(ranks / lo.node_ranks)
    if nodes == 1 or moe.num_experts % nodes:
        return 0.0 if nodes == 1 else distinct_destinations(moe, lo.recipe.ep) * (1 - lo.node_ranks / ranks)
    return distinct_destinations(moe, nodes) * (1 - 1 / nodes)
