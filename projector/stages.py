"""Seconds and weights of every virtual pipeline stage: blocks assembled as the layout says, communication of sharded
weights laid over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from projector.frameworks.types import Resolved
from projector.neighbours import Cover, cover, pairs_up
from projector.operators import lower
from projector.operators.step import Trainable, gather, reduction, trainable
from projector.operators.types import Block, Collective, HostWork, Operator
from projector.timing import SLOWED, Clock, Phase, Segment, chain
from projector.workload.layout import Chunk
from projector.workload.recipe import Recipe

__all__ = [
    "Part",
    "StageTime",
    "compute_operators",
    "gathers_every_microbatch",
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


def owned(resolved: Resolved, stage: Sequence[Part]) -> Trainable:
    """Elements of a virtual stage that receive gradients on one rank."""
    found = [_trained(resolved, part) for part in stage]
    return Trainable(sum(t.dense for t in found), sum(t.expert for t in found))


def _trained(resolved: Resolved, part: Part) -> Trainable:
    return trainable(resolved, part.block.parameters, part.block.expert_parameters, part.layers)


def stage_time(
    resolved: Resolved, stage: Sequence[Part], clock: Clock, cache: dict[tuple[int, bool], StageTime]
) -> StageTime:
    """One virtual stage from its blocks; ``cache`` holds blocks already priced in this projection."""
    times = [_part_time(resolved, part, clock, cache) for part in stage]
    forward = chain(t.forward for t in times)
    return StageTime(
        forward=replace(forward, wait=forward.wait + _mask_seconds(resolved, stage, clock)),
        backward=chain(t.backward for t in reversed(times)),
        weight=sum(t.weight for t in times),
        deferred=sum(t.deferred for t in times),
    )


def _mask_seconds(resolved: Resolved, stage: Sequence[Part], clock: Clock) -> float:
    """Seconds in which the attention mask of a micro-batch reaches the ranks of its first and last stage.

    ``create_attention_mask_in_dataloader``: a boolean [b, 1, s, s], copied to the device by the first tensor-parallel
    rank and broadcast to the others on the stream of the compute (Megatron-LM megatron/training/utils.py,
    ``get_batch_on_this_tp_rank``), whatever the attention kernel makes of it.
    """
    recipe = resolved.workload.recipe
    ends = any(part.block.name in ("embedding", "head") for part in stage)
    if not recipe.create_attention_mask_in_dataloader or not ends:
        return 0.0
    nbytes = float(recipe.micro_batch_size) * recipe.seq_length**2
    spread = Collective(name="attention_mask", kind="broadcast", group="tp", bytes=nbytes)
    return nbytes / resolved.host_bandwidth + clock.collective(spread)


def _part_time(resolved: Resolved, part: Part, clock: Clock, cache: dict[tuple[int, bool], StageTime]) -> StageTime:
    key = (id(part.block), part.recomputed)
    if key not in cache:
        cache[key] = _price(resolved, part, clock)
    return cache[key]


def _price(resolved: Resolved, part: Part, clock: Clock) -> StageTime:
    graphed = part.block.graphed
    later = _deferred(resolved, part)
    now = tuple(op for op in part.backward if op not in later)
    recipe, layer = resolved.workload.recipe, part.layers > 0
    beside = cover(part.block, clock, bool(recipe.delay_wgrad_compute)) if pairs_up(recipe) else Cover()
    forward = clock.phase(part.block.forward, layer=layer, graphed=graphed, covered=beside.forward)
    backward = clock.phase(now, layer=layer, graphed=graphed, covered=beside.backward)
    weight = clock.phase(tuple(op for op in part.block.backward_weight if op not in later)).compute
    weights = Trainable(part.block.parameters, part.block.expert_parameters)
    fetch, reduce = _unit_collectives(resolved, weights, _trained(resolved, part))
    again = () if recipe.fsdp_reshard_after_forward is False else fetch
    if resolved.execution.data_parallel == "ddp" and not recipe.overlap_grad_reduce:
        backward, reduce = _after(backward, reduce, clock), ()
    share = _shard_overlap(resolved, part)
    return StageTime(
        forward=_beside(forward, fetch, clock, share),
        backward=_beside(backward, (*again, *reduce), clock, share),
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
    resolved: Resolved, weights: Trainable, trained: Trainable
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


def _after(phase: Phase, collectives: Sequence[Collective], clock: Clock) -> Phase:
    """Communication that nothing hides, after the compute of a unit."""
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
    opaque = resolved.workload.recipe.moe_expert_capacity_factor is None and part.block.expert_parameters > 0
    return execution.shard_overlap * (execution.opaque_overlap if opaque else 1.0)


def _beside(phase: Phase, collectives: Sequence[Collective], clock: Clock, share: float) -> Phase:
    """Lays prefetched communication beside a unit's compute: what is longer decides, both slow each other down."""
    if not collectives:
        return phase
    comm = sum(clock.collective(op) for op in collectives)
    # The time in which the device waits for the host is no cover of its own: the larger of the two counts anyway.
    window = min(comm * (1.0 + SLOWED), phase.device * (1.0 + phase.crowding)) * share
    hidden, lost = window / (1.0 + SLOWED), window * phase.crowding / (1.0 + phase.crowding)
    extra = comm - hidden + lost
    first = phase.segments[0]
    host = first.host + clock.execution.collective_us * 1e-6 * len(collectives)
    exposed = dict(phase.exposed)
    exposed["dp"] = exposed.get("dp", 0.0) + comm - hidden
    slowed = (Segment(first.device + extra, host), *phase.segments[1:])
    return replace(phase, segments=slowed, compute=phase.compute + lost, exposed=exposed)
