"""Collectives between virtual pipeline stages, between two copies of a stage, and between stages that share a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from projector.collectives.placement import hop
from projector.frameworks.types import Resolved
from projector.mechanism import mechanism
from projector.operators.types import Collective
from projector.operators.weights import WeightSet
from projector.pipeline.types import Schedule
from projector.workload.composition import compositions


def activations(resolved: Resolved, schedule: Schedule) -> tuple[Collective | None, ...]:
    """Returns the collective that carries the activation of one micro-batch from each virtual stage to the next, ``stages −
    1`` of them; None where one rank has both (NVIDIA/Megatron-LM pipeline_parallel/schedules.py shapes). It goes over the
    node's links, the network or between pods, as the ranks of the two stages lie. Gradients are as large."""
    workload, recipe = resolved.workload, resolved.workload.recipe
    tokens = recipe.seq_length * recipe.micro_batch_size * recipe.sequences / recipe.token_ranks
    tokens /= recipe.tp if recipe.sequence_parallel else 1
    width = 4.0 if recipe.precision == "fp32" else 2.0
    tensors = (2 + recipe.reference) / 2  # mean of forward, which also sends the frozen model's, and backward
    nbytes, domain = tensors * tokens * workload.model.residual_width * width, recipe.domain
    entered = _entering_tensors(resolved, len(schedule.home))

    @cache
    def message(sender: int, receiver: int, tensors: int) -> Collective | None:
        if sender == receiver:
            return None
        group = hop(sender, receiver, workload.gpus // recipe.pp, resolved.node_ranks, resolved.pod_ranks, domain)
        return Collective(name="p2p", kind="send_recv", group=group, bytes=nbytes * tensors)

    ranks = [rank for rank, _ in schedule.home]
    return tuple(map(message, ranks, ranks[1:], entered[1:]))


def _entering_tensors(resolved: Resolved, stages: int) -> list[int]:
    """Returns the residual tensors that enter each virtual stage: attention residuals add all checkpoints so far."""
    model = resolved.workload.model
    if not model.attn_res_block_size:
        return [1] * stages
    tensors, layer = [], 0
    for part in compositions(model, resolved.workload.recipe)[0]:
        tensors.append(model.candidates(layer))
        layer = part.layers[-1] + 1 if part.layers else layer
    return tensors


@mechanism(off=())
def copies(resolved: Resolved, schedule: Schedule, rank: int, held: WeightSet) -> tuple[Collective, ...]:
    """Returns the exchange of gradients ``held`` with the other rank that has the same stages: each sends its shard."""
    if schedule.copies == 1:
        return ()
    workload, stages_here = resolved.workload, set(schedule.placement[rank])
    other = next(r for r, stages in enumerate(schedule.placement) if r != rank and set(stages) == stages_here)
    sharing, domain = resolved.execution.data_parallel, workload.recipe.domain
    nbytes = sharing.reduce_bytes * sharing.resident("states", workload, held.dense, held.expert)
    group = hop(rank, other, workload.gpus // workload.recipe.pp, resolved.node_ranks, resolved.pod_ranks, domain)
    return (Collective(name="grad_copies", kind="send_recv", group=group, bytes=nbytes),)


@mechanism(off=lambda *given: ((),) * len(given[-1]))
def tied(resolved: Resolved, schedule: Schedule, held: Sequence[WeightSet]) -> tuple[tuple[Collective, ...], ...]:
    """Returns, for every pipeline rank, the sums of gradients of tensors that other ranks hold, too, given the weights
    ``held`` that each trains: the vocabulary at both ends of a tied model, or under a prediction depth. Nothing hides them.

    Every rank sends what it keeps of the gradient after the reduction, in the type of the buffer; the optimizer's shards of
    Megatron are views of whole buffers, so it is the whole tensor (NVIDIA/Megatron-LM@d98e8a64dd megatron/core/distributed/
    finalize_model_grads.py, ``_allreduce_word_embedding_grads``; DeepSpeed runtime/pipe/module.py,
    ``allreduce_tied_weight_gradients``). Where a stage stands on two ranks these exchange everything: :func:`copies`.
    """
    sums: list[tuple[Collective, ...]] = [()] * len(held)
    if len(held) == 1 or schedule.copies > 1:
        return tuple(sums)
    workload, sharing = resolved.workload, resolved.execution.data_parallel
    shared: dict[tuple[int, ...], float] = {}
    for name in dict.fromkeys(name for weights in held for name in weights.stored):
        ranks = tuple(rank for rank, weights in enumerate(held) if name in weights.stored)
        if len(ranks) > 1:
            weight = held[ranks[0]].stored[name]
            elements = (0.0, weight.elements) if weight.expert else (weight.elements, 0.0)
            nbytes = sharing.reduce_bytes * sharing.resident("gradients", workload, *elements)
            shared[ranks] = shared.get(ranks, 0.0) + nbytes
    stage, nodes = workload.gpus // workload.recipe.pp, (resolved.node_ranks, resolved.pod_ranks)
    for ranks, nbytes in shared.items():
        group = "pp" if len(ranks) > 2 else hop(ranks[0], ranks[1], stage, *nodes, workload.recipe.domain)
        op = Collective(name="grad_tied", kind="all_reduce", group=group, bytes=nbytes)
        for rank in ranks:
            sums[rank] += (op,)
    return tuple(sums)
