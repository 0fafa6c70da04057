"""One model chunk: the bytes it keeps between forward and backward, and its costliest moments in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from projector.dataclass import dataclass
from projector.frameworks.scope import as_layers_see
from projector.frameworks.types import Resolved
from projector.layers import lower
from projector.layers.local import local
from projector.layers.mask import mask_bytes
from projector.layers.recompute import checkpointed
from projector.mechanisms.data_parallel import Gathered
from projector.memory.offload import RESIDENT, module_bytes
from projector.memory.transients import Stale, boundary_tensors, stale
from projector.operators.part import Block
from projector.workload.composition import Composition
from projector.workload.recipe import Recipe


class Moment(NamedTuple):
    """An event of a chunk: bytes saved by the chunk itself at that time, bytes that live only then, and those of free
    blocks that nothing then asked for fits."""

    name: str
    saved: float
    transient: float
    stranded: float = 0.0

    @property
    def total(self) -> float:
        return self.saved + self.transient


@dataclass(frozen=True, slots=True)
class ChunkMemory:
    """``saved``: between forward and backward; ``pending``: between the two halves of a split backward, bytes.
    ``backward``: its costliest moment, ``stranded`` what the allocator holds beyond that at the most."""

    saved: float
    pending: float
    forward: Moment
    backward: Moment

    @property
    def sizes(self) -> tuple[float, float, float, float]:
        """Saved, pending, all at the costliest moment of a forward, and of a backward beside what is saved: the alive count
        of a backward includes its own micro-batch, whose saved bytes are part of its moment."""
        return self.saved, self.pending, self.forward.total, self.backward.total - self.saved


class _Segment(NamedTuple):
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


def chunk_memory(resolved: Resolved, chunk: Composition, first: bool, last: bool, gathered: Gathered) -> ChunkMemory:
    """``first``/``last``: the chunk begins or ends the model; ``gathered``: unsharded weights of its rank."""
    recipe, x = resolved.workload.recipe, local(as_layers_see(resolved)).residual_bytes
    runs, depths = _segments(resolved, chunk), chunk.mtp[0]
    depth = [lower.mtp_layer(resolved)] if depths else []
    runs += [(_plain(recipe, block), depths) for block in depth]
    entry = [lower.embedding(resolved)] * chunk.embedding
    running = boundary_tensors(resolved, first, last) + sum(block.saved_bytes for block in entry)
    old = stale(resolved, first, last)
    ends = [lower.head(resolved)] * (chunk.head + depths)  # all logits are made after the last layer
    mask = mask_bytes(resolved) if entry or ends else 0.0
    rows = mask / recipe.cp
    forward = [Moment("attention_mask", 0.0, old.forward + mask + (rows if recipe.cp > 1 else 0.0))] if mask else []
    for segment, number in runs:
        running += number * segment.saved
        forward += [_forward(layer, running, old.forward + rows + gathered.forward) for layer in segment.layers]
    kept = running + sum(end.saved_bytes for end in ends)
    forward.append(Moment("forward", kept, old.forward + rows + (0.0 if ends else gathered.forward)))
    forward += [_forward(end, kept, old.forward + rows + gathered.loss) for end in ends[:1]]
    backward = _backward(runs, ends, kept, x, old, gathered)
    backward += [
        Moment(moment.name, block.saved_bytes, moment.net + old.backward - (x if last else 0.0) + gathered.backward)
        for block in entry
        for moment in block.backward_transients
    ]
    costliest = max(backward, key=lambda moment: moment.total)
    held = max(moment.total + moment.stranded for moment in backward)
    return ChunkMemory(
        # a combined forward and backward differentiates the old loss before it computes the new one
        # (Megatron-LM core/pipeline_parallel/combined_1f1b.py): its tensors never exist twice
        saved=kept - (_loss_bytes(ends) if recipe.overlap_moe_expert_parallel_comm else 0.0),
        pending=sum(number * layer.pending_bytes for segment, number in runs for layer in segment.layers),
        forward=max(forward, key=lambda moment: moment.total),
        backward=costliest._replace(stranded=held - costliest.total),
    )


def _forward(block: Block, kept: float, beside: float) -> Moment:
    most = block.forward_transient
    return Moment(most.name, kept, most.net + beside) if most else Moment("layer_forward", kept, beside)


def _loss_bytes(ends: list[Block]) -> float:
    """What gives way before the output layer is differentiated: what the losses saved."""
    return sum(moment.freed for end in ends for moment in end.backward_transients)


def _backward(
    runs: list[tuple[_Segment, int]], ends: list[Block], kept: float, x: float, old: Stale, gathered: Gathered
) -> list[Moment]:
    """Moments from the head down: each layer's backward with everything saved before it still there. No gradient enters
    the head, so that the boundary's counts one tensor too many there."""
    moments = [Moment("backward", kept, old.backward)]
    for moment in ends[0].backward_transients if ends else ():
        weights = gathered.projection if moment.freed else gathered.loss
        beside = moment.bytes + old.backward - x + weights
        moments.append(Moment(moment.name, kept - moment.freed, beside, moment.stranded))
    kept -= sum(end.saved_bytes for end in ends)
    for segment, number in reversed(runs):
        most = segment.backward
        moments.append(Moment(most.name, kept, most.transient + old.backward + gathered.backward))
        kept -= number * segment.saved
    return moments


def _segments(resolved: Resolved, chunk: Composition) -> list[tuple[_Segment, int]]:
    """The layers of a chunk, equal neighbours as one and how many they are: of those, the last of a forward and the first
    of a backward have most beside them."""
    recipe = resolved.workload.recipe
    out: list[tuple[_Segment, int]] = []
    for (group, replayed), number in checkpointed(recipe, chunk):
        own = tuple(lower.layer(layer.kind, resolved) for layer in group)
        widths = [lower.residual_bytes(each.kind, resolved) for each in group]
        made = _replayed(own, widths) if replayed else _plain(recipe, own[0])
        out.append((made, number))
    return _offloaded(recipe, out)


def _replayed(own: tuple[Block, ...], widths: Sequence[float]) -> _Segment:
    """A group keeps the input of its first layer, and its replay makes the others' and the output. ``widths``: bytes that
    enter each layer; one without modules (Llama-Nemotron's) saves nothing and hands on what it is given."""
    passed = [width for each, width in zip(own, widths, strict=True) if each.kept_bytes]
    saved = sum(each.kept_bytes for each in own) - sum(passed[1:])
    returned = sum(each.dropped_bytes for each in own) + sum(passed)
    beside = max(each.replay_transient.net if each.replay_transient else 0.0 for each in own)
    return _Segment(own, saved, returned, beside, True)


def _plain(recipe: Recipe, layer: Block) -> _Segment:
    """A layer outside full recompute."""
    if recipe.recompute_granularity == "full":
        return _Segment((layer,), layer.saved_bytes)
    replay = layer.replay_transient
    return _Segment((layer,), layer.kept_bytes, layer.dropped_bytes, replay.net if replay else 0.0, bool(replay))


def _offloaded(recipe: Recipe, runs: list[tuple[_Segment, int]]) -> list[tuple[_Segment, int]]:
    """Without what host memory has of each layer, but for the layers whose tensors are on their way."""
    if not (recipe.cpu_offloading_num_layers or recipe.offload_modules):
        return runs
    segments = [segment for segment, number in runs for _ in range(number)]
    number = min(recipe.cpu_offloading_num_layers or 0, len(segments))

    def left(i: int, segment: _Segment) -> float:
        if i < number - RESIDENT:
            return 0.0
        if i < number or i >= len(segments) - RESIDENT:
            return segment.saved
        return segment.saved - sum(module_bytes(recipe, layer) for layer in segment.layers)

    return [(segment._replace(saved=left(i, segment)), 1) for i, segment in enumerate(segments)]
