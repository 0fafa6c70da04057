"""One model chunk: the bytes it keeps between forward and backward, and its costliest moments in each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from projector.frameworks.scope import as_layers_see
from projector.frameworks.types import Resolved
from projector.layers import lower
from projector.layers.local import local
from projector.layers.recompute import checkpoint_groups
from projector.layers.types import Block
from projector.mechanisms.data_parallel import Gathered
from projector.memory.offload import RESIDENT, module_bytes
from projector.memory.transients import Stale, boundary_tensors, stale
from projector.workload.layout import Chunk
from projector.workload.model import LayerKind
from projector.workload.recipe import Recipe

__all__ = ["ChunkMemory", "Moment", "chunk_memory"]


@dataclass(frozen=True, slots=True)
class Moment:
    """An event of a chunk: bytes saved by the chunk itself at that time, and bytes that live only then."""

    name: str
    saved: float
    transient: float

    @property
    def total(self) -> float:
        return self.saved + self.transient


@dataclass(frozen=True, slots=True)
class ChunkMemory:
    """``saved``: between forward and backward; ``pending``: between the two halves of a split backward, bytes."""

    saved: float
    pending: float
    forward: Moment
    backward: Moment


@dataclass(frozen=True, slots=True)
class _Segment:
    """Layers that are kept or replayed together, in forward order: bytes ``saved`` until their backward, ``returned`` by
    their replay, and ``beside`` it at its costliest moment."""

    layers: tuple[Block, ...]
    saved: float
    returned: float = 0.0
    beside: float = 0.0
    replays: bool = False

    @property
    def backward(self) -> Moment:
        """Its costliest moment, in the layer whose backward comes first."""
        moments = self.layers[-1].backward_transients
        most = max(moments, key=lambda moment: moment.net, default=None)
        name, extra = (most.name, most.net) if most else ("layer_backward", 0.0)
        name = f"recompute_{name}" if self.replays or self.returned else name
        return Moment(name, 0.0, max(extra, self.beside) + self.returned)


def chunk_memory(resolved: Resolved, chunk: Chunk, first: bool, last: bool, gathered: Gathered) -> ChunkMemory:
    """``first``/``last``: the chunk begins or ends the model; ``gathered``: unsharded weights of its rank."""
    all_kinds = resolved.workload.model.layer_kinds
    kinds = tuple(all_kinds[i] for i in chunk.layers)
    groups = checkpoint_groups(resolved.workload.recipe, chunk.layers)
    return _chunk(as_layers_see(resolved), kinds, groups, chunk.embedding, chunk.head, chunk.mtp, first, last, gathered)


@lru_cache(maxsize=1024)
def _chunk(
    resolved: Resolved,
    kinds: tuple[LayerKind, ...],
    groups: tuple[tuple[int, ...], ...],
    embedding: bool,
    head: bool,
    mtp: int,
    first: bool,
    last: bool,
    gathered: Gathered,
) -> ChunkMemory:
    recipe, x = resolved.workload.recipe, local(resolved).hidden_bytes
    blocks = {kind: lower.layer(kind, resolved) for kind in set(kinds)}
    layers = [blocks[kind] for kind in kinds]
    depths = [lower.mtp_layer(resolved)] * mtp
    segments = _offloaded(recipe, _segments(recipe, layers, groups, x)) + [_plain(recipe, depth) for depth in depths]
    entry = [lower.embedding(resolved)] * embedding
    running = boundary_tensors(resolved, first, last) + sum(block.saved_bytes for block in entry)
    old = stale(resolved, first, last)
    forward: list[Moment] = []
    for segment in segments:
        running += segment.saved
        forward += [_forward(layer, running, old.forward + gathered.forward) for layer in segment.layers]
    ends = [lower.head(resolved)] * (head + mtp)  # all logits are made after the last layer
    kept = running + sum(end.saved_bytes for end in ends)
    forward.append(Moment("forward", kept, old.forward + (0.0 if ends else gathered.forward)))
    forward += [_forward(end, kept, old.forward + gathered.loss) for end in ends[:1]]
    backward = _backward(segments, ends, kept, x, old, gathered)
    backward += [
        Moment(moment.name, block.saved_bytes, moment.net + old.backward - (x if last else 0.0) + gathered.backward)
        for block in entry
        for moment in block.backward_transients
    ]
    return ChunkMemory(
        # a combined forward and backward differentiates the old loss before it computes the new one
        # (Megatron-LM core/pipeline_parallel/combined_1f1b.py): its tensors never exist twice
        saved=kept - (_loss_bytes(ends) if recipe.overlap_moe_expert_parallel_comm else 0.0),
        pending=sum(layer.pending_bytes for layer in (*layers, *depths)),
        forward=max(forward, key=lambda moment: moment.total),
        backward=max(backward, key=lambda moment: moment.total),
    )


def _forward(block: Block, kept: float, beside: float) -> Moment:
    most = block.forward_transient
    return Moment(most.name, kept, most.net + beside) if most else Moment("layer_forward", kept, beside)


def _loss_bytes(ends: list[Block]) -> float:
    """What gives way before the output layer is differentiated: what the losses saved."""
    return sum(moment.freed for end in ends for moment in end.backward_transients)


def _backward(
    segments: list[_Segment], ends: list[Block], kept: float, x: float, old: Stale, gathered: Gathered
) -> list[Moment]:
    """Moments from the head down: each layer's backward with everything saved before it still there. No gradient enters
    the head, so that the boundary's counts one tensor too many there."""
    moments = [Moment("backward", kept, old.backward)]
    for moment in ends[0].backward_transients if ends else ():
        weights = gathered.projection if moment.freed else gathered.loss
        moments.append(Moment(moment.name, kept - moment.freed, moment.bytes + old.backward - x + weights))
    kept -= sum(end.saved_bytes for end in ends)
    for segment in reversed(segments):
        most = segment.backward
        moments.append(Moment(most.name, kept, most.transient + old.backward + gathered.backward))
        kept -= segment.saved
    return moments


def _segments(recipe: Recipe, layers: list[Block], groups: tuple[tuple[int, ...], ...], x: float) -> list[_Segment]:
    """``x``: bytes of a layer's input: a group keeps that of its first layer, and its replay makes the others' and the
    output."""
    grouped = {group[0]: group for group in groups}
    inside = {i for group in groups for i in group}
    out: list[_Segment] = []
    for position, layer in enumerate(layers):
        if position in grouped:
            own = tuple(layers[i] for i in grouped[position])
            saved = sum(each.kept_bytes for each in own) - x * (len(own) - 1)
            returned = sum(each.dropped_bytes for each in own) + x * len(own)
            beside = max(each.replay_transient.net if each.replay_transient else 0.0 for each in own)
            out.append(_Segment(own, saved, returned, beside, True))
        elif position not in inside:
            out.append(_plain(recipe, layer))
    return out


def _plain(recipe: Recipe, layer: Block) -> _Segment:
    """A layer outside full recompute."""
    if recipe.recompute_granularity == "full":
        return _Segment((layer,), layer.saved_bytes)
    replay = layer.replay_transient
    return _Segment((layer,), layer.kept_bytes, layer.dropped_bytes, replay.net if replay else 0.0, bool(replay))


def _offloaded(recipe: Recipe, segments: list[_Segment]) -> list[_Segment]:
    """Without what host memory has of each layer, but for the layers whose tensors are on their way."""
    number = min(recipe.cpu_offloading_num_layers or 0, len(segments))

    def left(i: int, segment: _Segment) -> float:
        if i < number - RESIDENT:
            return 0.0
        if i < number or i >= len(segments) - RESIDENT:
            return segment.saved
        return segment.saved - sum(module_bytes(recipe, layer) for layer in segment.layers)

    return [replace(segment, saved=left(i, segment)) for i, segment in enumerate(segments)]
