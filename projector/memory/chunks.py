"""One model chunk: the bytes it keeps between forward and backward, and its costliest moments in each."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.layers import lower
from projector.layers.local import local
from projector.layers.mask import mask_bytes
from projector.layers.recompute import checkpoint_groups
from projector.mechanisms.data_parallel import Gathered
from projector.memory.offload import RESIDENT, module_bytes
from projector.memory.state import late_gradients
from projector.memory.transients import Stale, boundary_tensors, stale
from projector.operators.saved import Transient
from projector.size import are_columns, most
from projector.workload.composition import Composition
from projector.workload.model import LayerKind
from projector.workload.recipe import Recipe


class Moment(NamedTuple):
    """An event of a chunk: bytes ``saved`` by the chunk itself at that time, ``transient`` bytes that live only then,
    ``stranded`` bytes of free blocks that no request of that time fits, and ``absent`` ones of gradients still to come."""

    name: str
    saved: float
    transient: float
    stranded: float = 0.0
    absent: float = 0.0

    @property
    def total(self) -> float:
        return self.saved + self.transient - self.absent


@dataclass(frozen=True, slots=True)
class ChunkMemory:
    """Memory of a chunk in bytes. ``saved``: between forward and backward; ``pending``: between the two halves of a
    split backward. ``backward``: its costliest moment, ``stranded`` what the allocator holds beyond that at most."""

    saved: float
    pending: float
    forward: Moment
    backward: Moment

    @property
    def sizes(self) -> tuple[float, float, float, float]:
        """Returns saved and pending bytes, all bytes at the costliest moment of a forward, and of a backward beyond the
        saved ones: the alive count of a backward includes its own micro-batch, whose saved bytes are part of its moment."""
        return self.saved, self.pending, self.forward.total, self.backward.total - self.saved


class BlockMemory(NamedTuple):
    """Memory of one block: bytes ``saved`` without recompute, ``kept`` or ``dropped`` under it, ``pending`` between the
    halves of a split backward, ``offloaded`` by ``offload_modules``, and of its input (``width``); of those dropped,
    ``cached`` until the forward ends; of gradients that its backward brings (``late``); its costliest moments."""

    saved: float
    kept: float
    dropped: float
    cached: float
    pending: float
    offloaded: float
    width: float
    late: float
    forward: Transient | None
    replay: Transient | None
    backward: tuple[Transient, ...]


def block_memory(resolved: Resolved, name: Hashable) -> BlockMemory:
    """Returns the memory of the layer of a kind, or of the block ``embedding``, ``head`` or ``mtp_layer``."""
    block = lower.layer(name, resolved, True) if isinstance(name, LayerKind) else getattr(lower, str(name))(resolved)
    return BlockMemory(
        block.saved_bytes,
        block.kept_bytes,
        block.dropped_bytes,
        sum(saved.bytes for saved in block.dropped if saved.cached),
        block.pending_bytes,
        module_bytes(resolved.workload.recipe, block),
        lower.residual_bytes(name, resolved) if isinstance(name, LayerKind) else 0.0,
        late_gradients(resolved, block.owned),
        block.forward_transient,
        block.replay_transient,
        block.backward_transients,
    )


class _Segment(NamedTuple):
    """Layers that are kept or replayed together, in forward order: bytes ``saved`` until their backward, ``returned``
    by their replay, of which ``cached`` until the forward ends, and ``beside`` the replay at its costliest moment."""

    layers: tuple[BlockMemory, ...]
    saved: float
    returned: float = 0.0
    cached: float = 0.0
    beside: float = 0.0
    replays: bool = False

    @property
    def late(self) -> float:
        """Returns the bytes of gradients that its backward brings."""
        return sum(layer.late for layer in self.layers)

    @property
    def backward(self) -> Moment:
        """Returns the costliest moment, in the layer whose backward comes first."""
        moments = [Moment(each.name, 0.0, each.net) for each in self.layers[-1].backward]
        found = _costliest(moments) if moments else Moment("layer_backward", 0.0, 0.0)
        name = f"recompute_{found.name}" if self.replays or self.returned else found.name
        return Moment(name, 0.0, most(found.total, self.beside) + self.returned)


def _costliest(moments: list[Moment]) -> Moment:
    """Returns the first of the largest moments; for columns the largest total of each row, without a name."""
    totals = [moment.total for moment in moments]
    return Moment("", 0.0, most(*totals)) if are_columns(*totals) else moments[totals.index(max(totals))]


def chunk_memory(
    resolved: Resolved,
    chunk: Composition,
    first: bool,
    last: bool,
    gathered: Gathered,
    of: Callable[[Hashable], BlockMemory],
) -> ChunkMemory:
    """Returns the memory of a chunk. ``first``/``last``: it begins or ends the model; ``gathered``: unsharded weights
    of its rank; ``of``: returns what a block saves (:func:`block_memory`)."""
    recipe, x = resolved.workload.recipe, local(resolved).residual_bytes
    runs, depths = _segments(recipe, chunk, of), chunk.mtp[0]
    runs += [(_plain(recipe, of("mtp_layer")), depths)] if depths else []
    entry = [of("embedding")] * chunk.embedding
    running = boundary_tensors(resolved, first, last) + sum(block.saved for block in entry)
    old = stale(resolved, first, last)
    ends = [of("head")] * (chunk.head + depths)  # all logits are made after the last layer
    mask = mask_bytes(resolved) if entry or ends else 0.0
    rows = mask / recipe.cp
    forward = [Moment("attention_mask", 0.0, old.forward + mask + (rows if recipe.cp > 1 else 0.0))] if mask else []
    beside = old.forward + rows
    for segment, number in runs:
        running += number * segment.saved
        beside += number * segment.cached
        forward += [_forward(layer, running, beside + gathered.forward) for layer in segment.layers]
    kept = running + sum(end.saved for end in ends)
    forward.append(Moment("forward", kept, beside + (0.0 if ends else gathered.forward)))
    forward += [_forward(end, kept, beside + gathered.loss) for end in ends[:1]]
    beside = old.backward - (x if last else 0.0) + gathered.backward
    first_late = sum(block.late for block in entry)
    late = first_late + sum(end.late for end in ends) + sum(number * segment.late for segment, number in runs)
    backward = _backward(runs, ends, kept, x, old, gathered, late)
    backward += [
        Moment(moment.name, block.saved, moment.net + beside, absent=first_late)
        for block in entry
        for moment in block.backward
    ]
    costliest, ahead = _costliest(backward), _costliest(forward)._replace(absent=late)
    pools = [moment.total + moment.stranded for moment in backward]
    if resolved.execution.data_parallel.torch_fsdp:
        ahead = ahead._replace(stranded=late)
        pools = [pool + moment.absent for pool, moment in zip(pools, backward, strict=True)] + [ahead.total + late]
    return ChunkMemory(
        # a combined forward and backward differentiates the old loss before it computes the new one
        # (Megatron-LM core/pipeline_parallel/combined_1f1b.py): its tensors never exist twice
        saved=kept
        - bool(recipe.overlap_moe_expert_parallel_comm) * sum(moment.freed for end in ends for moment in end.backward),
        pending=sum(number * layer.pending for segment, number in runs for layer in segment.layers),
        forward=ahead,
        backward=costliest._replace(stranded=most(*pools) - costliest.total),
    )


def _forward(block: BlockMemory, kept: float, beside: float) -> Moment:
    own = block.forward
    return Moment(own.name, kept, own.net + beside) if own else Moment("layer_forward", kept, beside)


def _backward(
    runs: list[tuple[_Segment, int]],
    ends: list[BlockMemory],
    kept: float,
    x: float,
    old: Stale,
    gathered: Gathered,
    late: float,
) -> list[Moment]:
    """Returns the moments from the head down: each layer's backward with everything saved before it still there, and
    ``late`` bytes of gradients not yet. No gradient enters the head, so that the boundary's counts one tensor too many
    there. Of equal layers the last has least saved and most gradients."""
    moments = [Moment("backward", kept, old.backward, absent=late)]
    for moment in ends[0].backward if ends else ():
        weights = gathered.projection if moment.freed else gathered.loss
        beside = moment.bytes + old.backward - x + weights
        moments.append(Moment(moment.name, kept - moment.freed, beside, moment.stranded, late))
    kept, late = kept - sum(end.saved for end in ends), late - sum(end.late for end in ends)
    for segment, number in reversed(runs):
        own, rest = segment.backward, number - 1
        first = own._replace(saved=kept, transient=own.transient + old.backward + gathered.backward, absent=late)
        moments += [first, first._replace(saved=kept - rest * segment.saved, absent=late - rest * segment.late)]
        kept, late = kept - number * segment.saved, late - number * segment.late
    return moments


def _segments(recipe: Recipe, chunk: Composition, of: Callable[[Hashable], BlockMemory]) -> list[tuple[_Segment, int]]:
    """Returns the layers of a chunk, equal neighbours once, with their number: of equal layers, the last of a forward
    and the first of a backward have most beside them."""
    out: list[tuple[_Segment, int]] = []
    for (group, replayed), number in checkpoint_groups(recipe, chunk):
        own = tuple(of(layer.kind) for layer in group)
        out.append((_replayed(own) if replayed else _plain(recipe, own[0]), number))
    return _offloaded(recipe, out)


def _replayed(own: tuple[BlockMemory, ...]) -> _Segment:
    """Returns the segment of a replayed group: it keeps the input of its first layer, and its replay makes the others'
    and the output. A layer without modules (Llama-Nemotron's) saves nothing and passes on its input."""
    passed = [each.width for each in own if each.kept]
    saved = sum(each.kept for each in own) - sum(passed[1:])
    returned, cached = sum(each.dropped for each in own) + sum(passed), sum(each.cached for each in own)
    beside = most(*[each.replay.net if each.replay else 0.0 for each in own])
    return _Segment(own, saved, returned, cached, beside, True)


def _plain(recipe: Recipe, layer: BlockMemory) -> _Segment:
    """Returns the segment of a layer outside full recompute."""
    if recipe.recompute_granularity == "full":
        return _Segment((layer,), layer.saved)
    replay = layer.replay
    return _Segment((layer,), layer.kept, layer.dropped, layer.cached, replay.net if replay else 0.0, bool(replay))


def _offloaded(recipe: Recipe, runs: list[tuple[_Segment, int]]) -> list[tuple[_Segment, int]]:
    """Removes what host memory has of each layer, except for the layers whose tensors are on their way."""
    if not (recipe.cpu_offloading_num_layers or recipe.offload_modules):
        return runs
    segments = [segment for segment, number in runs for _ in range(number)]
    number = min(recipe.cpu_offloading_num_layers or 0, len(segments))

    def left(i: int, segment: _Segment) -> float:
        if i < number - RESIDENT:
            return 0.0
        if i < number or i >= len(segments) - RESIDENT:
            return segment.saved
        return segment.saved - sum(layer.offloaded for layer in segment.layers)

    return [(segment._replace(saved=left(i, segment)), 1) for i, segment in enumerate(segments)]
