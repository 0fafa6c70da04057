"""Seconds and weights of every virtual pipeline stage: blocks assembled as the layout says, communication of sharded
weights laid over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from projector.frameworks.types import Resolved
from projector.operators import lower
from projector.operators.step import Trainable, gather, reduction, trainable
from projector.operators.types import Block, Collective, HostWork, Operator
from projector.timing import SLOWED, Clock, Phase, Segment, chain
from projector.workload.layout import Chunk
from projector.workload.recipe import Recipe

__all__ = ["Part", "StageTime", "compute_operators", "owned", "parts", "stage_time"]


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
    return StageTime(
        forward=chain(t.forward for t in times),
        backward=chain(t.backward for t in reversed(times)),
        weight=sum(t.weight for t in times),
        deferred=sum(t.deferred for t in times),
    )


def _part_time(resolved: Resolved, part: Part, clock: Clock, cache: dict[tuple[int, bool], StageTime]) -> StageTime:
    key = (id(part.block), part.recomputed)
    if key not in cache:
        cache[key] = _price(resolved, part, clock)
    return cache[key]


def _price(resolved: Resolved, part: Part, clock: Clock) -> StageTime:
    graphed = part.block.graphed
    later = _deferred(resolved, part)
    now = tuple(op for op in part.backward if op not in later)
    forward = clock.phase(part.block.forward, layer=part.layers > 0, graphed=graphed)
    backward = clock.phase(now, layer=part.layers > 0, graphed=graphed)
    weight = clock.phase(tuple(op for op in part.block.backward_weight if op not in later)).compute
    weights = Trainable(part.block.parameters, part.block.expert_parameters)
    fetch, reduce = _unit_collectives(resolved, weights, _trained(resolved, part))
    return StageTime(
        forward=_beside(forward, fetch, clock),
        backward=_beside(backward, (*fetch, *reduce), clock),
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
    recipe, execution = resolved.workload.recipe, resolved.execution
    fetch = gather(resolved, weights) if recipe.data_parallel_sharding == "optim_grads_params" else ()
    reduce = reduction(resolved, trained) if execution.reduce_every_microbatch else ()
    return fetch, reduce


def _beside(phase: Phase, collectives: Sequence[Collective], clock: Clock) -> Phase:
    """Lays prefetched communication beside a unit's compute: what is longer decides, both slow each other down."""
    if not collectives:
        return phase
    comm = sum(clock.collective(op) for op in collectives)
    # The time in which the device waits for the host is no cover of its own: the larger of the two counts anyway.
    window = min(comm * (1.0 + SLOWED), phase.device * (1.0 + phase.crowding)) * clock.execution.shard_overlap
    hidden, lost = window / (1.0 + SLOWED), window * phase.crowding / (1.0 + phase.crowding)
    extra = comm - hidden + lost
    first = phase.segments[0]
    host = first.host + clock.execution.collective_us * 1e-6 * len(collectives)
    exposed = dict(phase.exposed)
    exposed["dp"] = exposed.get("dp", 0.0) + comm - hidden
    slowed = (Segment(first.device + extra, host), *phase.segments[1:])
    return replace(phase, segments=slowed, compute=phase.compute + lost, exposed=exposed)
