"""Seconds and weights of every virtual pipeline stage: blocks assembled as the layout says, communication of sharded
weights laid over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from projector.frameworks.types import Resolved
from projector.layers import lower
from projector.layers.step import gather, reduction
from projector.layers.types import Block, Collective, HostWork, Operator
from projector.layers.weights import Held, held
from projector.step.neighbours import Cover, cover, pairs_up
from projector.step.timing import SLOWED, Clock, Message, Phase, Segment, chain
from projector.step.waits import waits_for_host, with_mask
from projector.workload.layout import Chunk
from projector.workload.recipe import Recipe

__all__ = [
    "Part",
    "StageTime",
    "compute_operators",
    "gathers_every_microbatch",
    "messages",
    "owned",
    "parts",
    "reduces_every_microbatch",
    "stage_time",
]


@dataclass(frozen=True, slots=True)
class Part:
    """One block of a stage. ``recomputed``: its forward is replayed before its backward; ``layers``: 1 for a layer."""

    block: Block
    recomputed: bool
    layers: int = 1

    @property
    def backward(self) -> tuple[Operator, ...]:
        replay = self.block.recompute if self.recomputed else ()
        return (*replay, *self.block.backward_input, *self.block.backward_weight)


@dataclass(frozen=True, slots=True)
class StageTime:
    """One virtual stage, one micro-batch. ``weight``: seconds of the backward that a split schedule may postpone;
    ``deferred``: seconds of a weight gradient left for the end of the step, in neither."""

    forward: Phase
    backward: Phase
    weight: float
    deferred: float = 0.0


def parts(resolved: Resolved, chunk: Chunk) -> tuple[Part, ...]:
    """The blocks of a virtual stage in order: embedding, layers, MTP modules, head."""
    recipe, kinds = resolved.workload.recipe, resolved.workload.model.layer_kinds
    found: list[Part] = []
    if chunk.embedding:
        found.append(Part(lower.embedding(resolved), False, 0))
    for position, layer in enumerate(chunk.layers):
        quantised = not (recipe.first_last_layers_bf16 and layer in (0, len(kinds) - 1))
        block = lower.layer(kinds[layer], resolved, quantised)
        found.append(Part(block, _recomputed(recipe, position, layer)))
    found += [Part(lower.mtp(resolved), _recomputed(recipe, 0, 0)) for _ in range(chunk.mtp)]
    if chunk.head:
        found.append(Part(lower.head(resolved), False, 0))
    return tuple(found)


def _recomputed(recipe: Recipe, position: int, layer: int) -> bool:
    """Megatron's rule: uniform replays every layer, block the first n of each virtual stage, ids the layers named."""
    if recipe.recompute_layer_ids is not None:
        return layer in recipe.recompute_layer_ids
    if recipe.recompute_granularity == "full" and recipe.recompute_method == "block":
        return position < (recipe.recompute_num_layers or 0)
    return recipe.recompute_granularity in ("full", "selective")


def compute_operators(stages: Sequence[Sequence[Part]]) -> Iterator[Operator]:
    """Every operator of the stages that a kernel model prices, repeats included."""
    seen: set[int] = set()
    for stage in stages:
        for part in stage:
            key = hash((id(part.block), part.recomputed))
            if key not in seen:
                seen.add(key)
                for op in (*part.block.forward, *part.backward):
                    if not isinstance(op, Collective | HostWork):
                        yield op


def owned(resolved: Resolved, stage: Sequence[Part]) -> Held:
    """The weights of a virtual stage that receive gradients on one rank."""
    number = Counter(id(part.block) for part in stage)
    blocks = {id(part.block): part.block for part in stage}
    return _trained(resolved, held((block.weights, number[key]) for key, block in blocks.items()))


def _trained(resolved: Resolved, weights: Held) -> Held:
    """All of them, or the adapters alone."""
    return weights if resolved.workload.recipe.lora is None else weights.only("adapter")


def stage_time(
    resolved: Resolved, stage: Sequence[Part], clock: Clock, cache: dict[tuple[int, bool], StageTime]
) -> StageTime:
    """One virtual stage from its blocks; ``cache`` holds blocks already priced in this projection."""
    times = [_part_time(resolved, part, clock, cache) for part in stage]
    forward, backward = chain(t.forward for t in times), chain(t.backward for t in reversed(times))
    waits = waits_for_host(resolved, stage, [(t.forward.seconds, t.backward.seconds) for t in times])
    return StageTime(
        forward=with_mask(replace(forward, wait=forward.wait + waits[0]), resolved, stage, clock),
        backward=replace(backward, wait=backward.wait + waits[1]),
        weight=sum(t.weight for t in times),
        deferred=sum(t.deferred for t in times),
    )


def _part_time(resolved: Resolved, part: Part, clock: Clock, cache: dict[tuple[int, bool], StageTime]) -> StageTime:
    key = (id(part.block), part.recomputed)
    if key not in cache:
        cache[key] = _price(resolved, part, clock)
    return cache[key]


def messages(resolved: Resolved, part: Part, clock: Clock) -> tuple[Message, ...]:
    """Every collective of one block in one micro-batch, in order."""
    ledger: list[Message] = []
    _price(resolved, part, clock, ledger)
    return tuple(ledger)


def _price(resolved: Resolved, part: Part, clock: Clock, ledger: list[Message] | None = None) -> StageTime:
    graphed = part.block.graphed
    later = _deferred(resolved, part)
    now = tuple(op for op in part.backward if op not in later)
    recipe, layer = resolved.workload.recipe, part.layers > 0
    beside = cover(part.block, clock, bool(recipe.delay_wgrad_compute)) if pairs_up(recipe) else Cover()
    forward = clock.phase(part.block.forward, layer=layer, graphed=graphed, covered=beside.forward, ledger=ledger)
    backward = clock.phase(now, layer=layer, graphed=graphed, covered=beside.backward, ledger=ledger)
    weight = clock.phase(tuple(op for op in part.block.backward_weight if op not in later)).compute
    weights = part.block.owned
    fetch, reduce = _unit_collectives(resolved, weights, _trained(resolved, weights))
    again = () if recipe.fsdp_reshard_after_forward is False else fetch
    if resolved.execution.data_parallel == "ddp" and not recipe.overlap_grad_reduce:
        backward, reduce = _after(backward, reduce, clock, ledger), ()
    share = _shard_overlap(resolved, part)
    return StageTime(
        forward=_beside(forward, fetch, clock, share, ledger),
        backward=_beside(backward, (*again, *reduce), clock, share, ledger),
        weight=weight,
        deferred=clock.phase(later).seconds if later else 0.0,
    )


def _deferred(resolved: Resolved, part: Part) -> tuple[Operator, ...]:
    """Weight gradients of the output layer that ``defer_embedding_wgrad_compute`` collects until the last backward of
    the step (NVIDIA/Megatron-LM core/pipeline_parallel/schedules.py, ``finish_embedding_wgrad_compute``)."""
    recipe = resolved.workload.recipe
    if not recipe.defer_embedding_wgrad_compute or recipe.pp == 1:
        return ()
    return tuple(op for op in part.block.backward_weight if op.name.startswith("output.wgrad"))


def _unit_collectives(
    resolved: Resolved, weights: Held, trained: Held
) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """Weight gathers and gradient reductions that one unit of a sharded framework issues in each micro-batch."""
    fetch = gather(resolved, weights) if gathers_every_microbatch(resolved) else ()
    reduce = reduction(resolved, trained) if reduces_every_microbatch(resolved) else ()
    return fetch, reduce


def gathers_every_microbatch(resolved: Resolved) -> bool:
    """Whether weights are gathered unit by unit for each pass, instead of once per step.

    Under a pipeline torch's FSDP2 keeps them from the first forward to the last backward where they are not given back
    after the forward (pytorch/torchtitan distributed/fsdp.py; torch distributed/pipelining/stage.py).
    """
    recipe, execution = resolved.workload.recipe, resolved.execution
    kept = execution.unsharded_pipeline and recipe.pp > 1
    return recipe.data_parallel_sharding == "optim_grads_params" and not kept


def reduces_every_microbatch(resolved: Resolved) -> bool:
    """Whether gradients are reduced in each micro-batch, instead of after the last: FSDP and ZeRO-2, but for FSDP2 under
    a pipeline, whose stages synchronise with their last backward (torch distributed/pipelining/stage.py,
    ``backward_maybe_with_nosync``)."""
    execution = resolved.execution
    piped = execution.data_parallel == "fsdp2" and resolved.workload.recipe.pp > 1
    return execution.reduce_every_microbatch and not piped


def _after(phase: Phase, collectives: Sequence[Collective], clock: Clock, ledger: list[Message] | None = None) -> Phase:
    """Communication that nothing hides, after the compute of a unit."""
    if ledger is not None:
        ledger += [Message(op, clock.collective(op), 0.0) for op in collectives]
    comm = sum(clock.collective(op) for op in collectives)
    exposed = dict(phase.exposed)
    exposed["dp"] = exposed.get("dp", 0.0) + comm
    *before, last = phase.segments
    host = last.host + clock.execution.collective_us * 1e-6 * len(collectives)
    return replace(phase, segments=(*before, Segment(last.device + comm, host)), exposed=exposed)


def _shard_overlap(resolved: Resolved, part: Part) -> float:
    """Share of a unit's weight traffic that runs beside its compute: less where a compiler cannot move it past the custom
    calls of dropless experts (those of a capacity factor are products that it knows)."""
    execution = resolved.execution
    opaque = resolved.workload.recipe.moe_expert_capacity_factor is None and part.block.owned.expert > 0
    return execution.shard_overlap * (execution.opaque_overlap if opaque else 1.0)


def _beside(
    phase: Phase,
    collectives: Sequence[Collective],
    clock: Clock,
    share: float,
    ledger: list[Message] | None = None,
) -> Phase:
    """Lays prefetched communication beside a unit's compute: what is longer decides, both slow each other down."""
    if not collectives:
        return phase
    comm = sum(clock.collective(op) for op in collectives)
    # The time in which the device waits for the host is no cover of its own: the larger of the two counts anyway.
    window = min(comm * (1.0 + SLOWED), phase.device * (1.0 + phase.crowding)) * share
    hidden, lost = window / (1.0 + SLOWED), window * phase.crowding / (1.0 + phase.crowding)
    if ledger is not None and comm > 0:
        each = [(op, clock.collective(op)) for op in collectives]
        ledger += [Message(op, seconds, seconds / comm * hidden) for op, seconds in each]
    extra = comm - hidden + lost
    first = phase.segments[0]
    host = first.host + clock.execution.collective_us * 1e-6 * len(collectives)
    exposed = dict(phase.exposed)
    exposed["dp"] = exposed.get("dp", 0.0) + comm - hidden
    slowed = (Segment(first.device + extra, host), *phase.segments[1:])
    return replace(phase, segments=slowed, compute=phase.compute + lost, exposed=exposed)
