"""Seconds and weights of every virtual pipeline stage: blocks joined by the layout, sharded weights' traffic beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from projector import pipeline
from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.layers import lower
from projector.memo import IdentityKey
from projector.operators.module import Block
from projector.operators.types import Collective, Gemm, GroupedGemm, HostWork, Operator
from projector.operators.weights import WeightSet, weight_set
from projector.size import least, per_row
from projector.step.combined_1f1b import exchange_overlap, pairs_microbatches
from projector.step.host_waits import activations_on_host, waits_for_host
from projector.step.loop_gathers import ANYTHING, Limit, limit
from projector.step.timing import CONTENTION, NOTHING, SLOWED, Clock, Message, Phase, join, join_separate
from projector.workload.composition import Composition, Layer, counted
from projector.workload.recipe import Recipe


@dataclass(frozen=True, slots=True)
class StageBlock:
    """One block of a stage. ``recomputed``: the forward is replayed before the backward; ``layers``: 1 for a layer, or 0."""

    block: Block
    recomputed: bool
    layers: int = 1

    @property
    def key(self) -> tuple[int, bool]:
        """Returns a key that is equal for stage blocks of one block that take the same time."""
        return id(self.block), self.recomputed

    @property
    def backward(self) -> tuple[Operator, ...]:
        replay = self.block.recompute if self.recomputed else ()
        return (*replay, *self.block.backward_input, *self.block.backward_weight)


@dataclass(frozen=True, eq=False)
class StageTime:
    """Times of one micro-batch in one virtual stage. ``inputs``: its backward, without the weight gradients where the
    schedule computes them apart; those are ``weight``, with the host time of their own launches (else empty).
    ``deferred``: seconds of a weight gradient left for the end of the step, part of neither."""

    forward: Phase
    inputs: Phase
    weight: Phase = NOTHING
    deferred: float = 0.0

    @property
    def phases(self) -> tuple[Phase, Phase, Phase]:
        return self.forward, self.inputs, self.weight

    @property
    def lean(self) -> StageTime:
        """Returns the same times without what sums over blocks never read: compute, exposed and measured seconds."""
        forward, inputs, weight = (Phase(phase.segments, 0.0, wait=phase.wait) for phase in self.phases)
        return StageTime(forward, inputs, weight, self.deferred)

    @cached_property
    def backward(self) -> Phase:
        """Returns the whole backward as one phase."""
        return join_separate(self.inputs, self.weight)


def parts(resolved: Resolved, chunk: Composition) -> tuple[StageBlock, ...]:
    """Returns the blocks of a virtual stage in order: embedding, layers, MTP modules, head."""
    return tuple(part for name, number in counted_names(chunk) for part in (named(resolved, name),) * number)


def counted_names(chunk: Composition) -> list[tuple[Hashable, int]]:
    """Returns the names of the blocks of a virtual stage in order (:func:`named`), equal neighbours once, with their
    number; equal blocks of one run have equal names."""
    depths, again = chunk.mtp
    names = (("embedding", int(chunk.embedding)), *chunk.runs, (("mtp", again), depths), ("head", int(chunk.head)))
    return [(name, number) for name, number in names if number]


def named(resolved: Resolved, name: Hashable) -> StageBlock:
    """Returns the block of a name: ``embedding``, a layer, MTP modules (with whether they are recomputed), ``head``."""
    if isinstance(name, Layer):
        return StageBlock(lower.layer(name.kind, resolved, name.narrow), name.recomputed)
    if isinstance(name, tuple):
        return StageBlock(lower.mtp(resolved), name[1])
    return StageBlock(getattr(lower, str(name))(resolved), False, 0)


def compute_operators(blocks: Iterable[StageBlock]) -> Iterator[Operator]:
    """Yields every operator of ``blocks`` that a kernel model prices, repeats inside a block included."""
    seen = set[int]()
    for part in blocks:
        replay = part.block.recompute if part.recomputed else ()
        for ops in (part.block.forward, replay, part.block.backward_input, part.block.backward_weight):
            if id(ops) not in seen:
                seen.add(id(ops))
                yield from (op for op in ops if not isinstance(op, Collective | HostWork))


def owned(resolved: Resolved, stage: Sequence[StageBlock]) -> WeightSet:
    """Returns the weights of a virtual stage that receive gradients on one rank."""
    number = Counter(id(part.block) for part in stage)
    blocks = {id(part.block): part.block for part in stage}
    return trained_of(resolved, weight_set((block.weights, number[key]) for key, block in blocks.items()))


def trained_of(resolved: Resolved, weights: WeightSet) -> WeightSet:
    """Returns the weights that are trained: all but the frozen ones, or the adapters alone where there are some."""
    return weights.trained if resolved.workload.recipe.lora is None else weights.only("adapter")


def stage_time(resolved: Resolved, stage: Sequence[StageBlock], clock: Clock) -> StageTime:
    """Returns the times of a virtual stage that consists of the blocks ``stage`` in order."""
    times = {part.key: block_time(resolved, part, clock) for part in {part.key: part for part in stage}.values()}
    return stage_from_blocks(resolved, [(part, times[part.key], number) for part, number in counted(stage)])


def stage_from_blocks(resolved: Resolved, blocks: Sequence[tuple[StageBlock, StageTime, int]]) -> StageTime:
    """Returns the time of a virtual stage from its blocks in order, with the times and the number of each."""
    forward = join(t.forward.repeated(n) for _, t, n in blocks)
    inputs = join(t.inputs.repeated(n) for _, t, n in reversed(blocks))
    weight = NOTHING
    if synchronises_after_exchange(resolved):
        # the first stage receives nothing before its forward, the last before its backward
        sync, names = resolved.execution.runtime.sync_us * 1e-6, {part.block.name for part, *_ in blocks}
        forward = forward if "embedding" in names else forward.synchronised(sync)
        inputs = inputs if "head" in names else inputs.synchronised(sync)
    if splits(resolved.workload.recipe):
        weight = join(t.weight.repeated(n) for _, t, n in reversed(blocks))
    if activations_on_host(resolved):
        waits = waits_for_host(resolved, [(part, time) for part, time, n in blocks for _ in range(n)])
        forward, inputs = forward.waiting(waits[0]), inputs.waiting(waits[1])
    return StageTime(forward, inputs, weight, sum(n * t.deferred for _, t, n in blocks))


def synchronises_after_exchange(resolved: Resolved) -> bool:
    """Returns whether the host waits for the device after each exchange between stages, so that what comes next begins
    with no kernel issued (NVIDIA/Megatron-LM@d98e8a64dd megatron/core/pipeline_parallel/p2p_communication.py,
    ``batch_p2p_sync``; not where interleaved stages send and receive one by one, ``overlap_p2p_comm``)."""
    recipe, execution = resolved.workload.recipe, resolved.execution
    batched = recipe.pipeline_schedule in ("1f1b", "interleaved") and not recipe.overlap_p2p_comm
    return recipe.pp > 1 and batched and execution.pipeline.batch_p2p_sync and not execution.runtime.whole_step


def messages(resolved: Resolved, part: StageBlock, clock: Clock) -> tuple[Message, ...]:
    """Returns every collective of one block in one micro-batch, in order."""
    ledger: list[Message] = []
    block_time(resolved, part, clock, ledger)
    return tuple(ledger)


def splits(recipe: Recipe) -> bool:
    """Returns whether the schedule computes weight gradients apart from input gradients."""
    name = recipe.pipeline_schedule
    return bool(
        per_row(lambda pp, vpp: pipeline.generator(pipeline.choose(name, pp, vpp)).split, recipe.pp, recipe.vpp)
    )


def block_time(resolved: Resolved, part: StageBlock, clock: Clock, ledger: list[Message] | None = None) -> StageTime:
    """Returns the times of one block for one micro-batch."""
    recipe, graphed, layer = resolved.workload.recipe, part.block.graphed, part.layers > 0
    deferred = _deferred_gradients(resolved, part)
    backward = tuple(op for op in part.backward if op not in deferred)
    postponed = tuple(op for op in part.block.backward_weight if op not in deferred) if splits(recipe) else ()
    inputs_ops = backward[: len(backward) - len(postponed)]
    hidden = (
        exchange_overlap(part.block, clock, bool(recipe.delay_wgrad_compute)) if pairs_microbatches(recipe) else None
    )
    covered = (hidden.forward, hidden.backward) if hidden else (None, None)
    key = IdentityKey(part.block.forward), layer
    forward = clock.forwards.get(key) if ledger is None and hidden is None else None
    if forward is None:
        forward = clock.phase(part.block.forward, layer=layer, graphed=graphed, covered=covered[0], ledger=ledger)
    if hidden is None:
        clock.forwards[key] = forward  # the same for every recompute of the block
    inputs = clock.phase(inputs_ops, layer=layer, graphed=graphed, covered=covered[1], ledger=ledger)
    weight = clock.phase(postponed, graphed=graphed, ledger=ledger) if postponed else NOTHING
    weights = part.block.owned
    fetch, reduce = _unit_collectives(resolved, weights, trained_of(resolved, weights))
    again = () if resolved.execution.data_parallel.keeps_gathered else fetch
    if not resolved.execution.data_parallel.reduces_beside_backward(recipe):
        inputs, reduce = _exposed_after(inputs, reduce, clock, ledger), ()
    share = _hidden_share(resolved, part)
    ahead, back = _gather_limits(resolved, part, inputs_ops, fetch, clock)
    return StageTime(
        forward=_overlapped(forward, fetch * (1 + recipe.reference), clock, share, ahead, ledger),
        inputs=_overlapped(inputs, (*again, *reduce), clock, share, back, ledger),
        weight=weight,
        deferred=clock.phase(deferred).seconds if deferred else 0.0,
    )


def _deferred_gradients(resolved: Resolved, part: StageBlock) -> tuple[Operator, ...]:
    """Returns the weight gradients of the output layer that ``defer_embedding_wgrad_compute`` collects until the last
    backward of the step (NVIDIA/Megatron-LM core/pipeline_parallel/schedules.py, ``finish_embedding_wgrad_compute``)."""
    recipe = resolved.workload.recipe
    if not recipe.defer_embedding_wgrad_compute or recipe.pp == 1:
        return ()
    return tuple(op for op in part.block.backward_weight if op.name.startswith("output.wgrad"))


def _unit_collectives(
    resolved: Resolved, weights: WeightSet, trained: WeightSet
) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """Returns the weight gathers and gradient reductions that a unit of a sharded framework issues in each micro-batch."""
    workload, sharing = resolved.workload, resolved.execution.data_parallel
    fetch = sharing.gather(workload, weights) if sharing.gathers_every_microbatch(workload.recipe) else ()
    reduce = sharing.reduction(workload, trained) if sharing.reduces_every_microbatch(workload) else ()
    return fetch, reduce


def _exposed_after(
    phase: Phase, collectives: Sequence[Collective], clock: Clock, ledger: list[Message] | None
) -> Phase:
    """Appends communication that nothing hides to the compute of a unit."""
    if ledger is not None:
        ledger += [Message(op, clock.collective(op), 0.0) for op in collectives]
    comm = sum(clock.collective(op) for op in collectives)
    exposed = dict(phase.exposed)
    exposed["dp"] = exposed.get("dp", 0.0) + comm
    *before, last = phase.segments
    after = last.running(comm, clock.execution.runtime.collective_us * 1e-6 * len(collectives))
    return replace(phase, segments=(*before, after), exposed=exposed)


def _hidden_share(resolved: Resolved, part: StageBlock) -> float:
    """Returns the share of a unit's weight traffic that runs beside its compute: less where a compiler cannot move it
    past the custom calls of dropless experts (experts with a capacity factor are products that it knows)."""
    opaque = resolved.workload.recipe.moe_expert_capacity_factor is None and part.block.owned.expert > 0
    return resolved.execution.data_parallel.hidden_share(opaque)


def _gather_limits(
    resolved: Resolved, part: StageBlock, backward: Sequence[Operator], gathers: Sequence[Collective], clock: Clock
) -> tuple[Limit, Limit]:
    """Returns the limits of gathers beside a unit's forward and its ``backward``: none where they are started a unit
    ahead. A replay with products uses every weight before the backward does."""
    sharing, replay = resolved.execution.data_parallel, part.block.recompute if part.recomputed else ()
    if sharing.prefetches:
        return ANYTHING, ANYTHING
    replays_products = any(isinstance(op, Gemm | GroupedGemm) for op in replay)
    users = (part.block.forward, False), (replay if replays_products else backward, not replays_products)
    forward, back = (
        limit(ops, gathers, clock, sharing.gather_combine_bytes, backward=reverse) for ops, reverse in users
    )
    return forward, back


def _overlapped(
    phase: Phase,
    collectives: Sequence[Collective],
    clock: Clock,
    share: float,
    most: Limit = ANYTHING,
    ledger: list[Message] | None = None,
) -> Phase:
    """Lays prefetched communication beside a unit's compute, ``most`` of both: the longer decides, each slows the other."""
    if not collectives:
        return phase
    comm = sum(clock.collective(op) for op in collectives)
    # Time in which the device waits for the host covers nothing more: the larger of the two counts anyway.
    traffic, compute = least(comm, most.traffic), least(phase.device, most.compute)
    window = least(traffic * (1.0 + SLOWED), compute * (1.0 + CONTENTION)) * share
    hidden, lost = window / (1.0 + SLOWED), window * CONTENTION / (1.0 + CONTENTION)
    if ledger is not None and comm > 0:
        seconds_of = [(op, clock.collective(op)) for op in collectives]
        ledger += [Message(op, seconds, seconds / comm * hidden) for op, seconds in seconds_of]
    extra = comm - hidden + lost
    first = phase.segments[0]
    host = first.host + clock.execution.runtime.collective_us * 1e-6 * len(collectives)
    exposed = dict(phase.exposed)
    exposed["dp"] = exposed.get("dp", 0.0) + comm - hidden
    slowed = (first._replace(host=host, apart=first.apart + extra), *phase.segments[1:])
    return replace(phase, segments=slowed, compute=phase.compute + lost, exposed=exposed)
