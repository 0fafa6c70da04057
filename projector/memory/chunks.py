"""One model chunk: the bytes it keeps between forward and backward, and its costliest moments in each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from projector.frameworks.types import Resolved
from projector.memory.activations import kept_until_weight_gradient, saved
from projector.memory.head import HeadMemory, embedding_backward, head_memory
from projector.memory.moe import forward_buffers
from projector.memory.offload import RESIDENT, module_bytes
from projector.memory.recompute import Kept, checkpoint_groups, named, selective
from projector.memory.sizes import sizes
from projector.memory.transients import Unsharded, backward_moment, boundary_tensors, forward_moment, stale
from projector.workload.layout import Chunk
from projector.workload.model import LayerKind

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
    """Layers that are kept or replayed together, in forward order."""

    kinds: tuple[LayerKind, ...]
    saved: float
    returned: float
    reruns: bool  # the whole segment runs forward again


def chunk_memory(resolved: Resolved, chunk: Chunk, first: bool, last: bool, gathered: Unsharded) -> ChunkMemory:
    """``first``/``last``: the chunk begins or ends the model; ``gathered``: unsharded weights of its rank."""
    all_kinds = resolved.workload.model.layer_kinds
    kinds = tuple(all_kinds[i] for i in chunk.layers)
    groups = checkpoint_groups(resolved.workload.recipe, chunk.layers)
    tail = LayerKind(all_kinds[-1].moe)
    return _chunk(resolved, kinds, groups, chunk.embedding, chunk.head, chunk.mtp, tail, first, last, gathered)


@lru_cache(maxsize=1024)
def _chunk(
    resolved: Resolved,
    kinds: tuple[LayerKind, ...],
    groups: tuple[tuple[int, ...], ...],
    embedding: bool,
    head: bool,
    mtp: int,
    tail: LayerKind,
    first: bool,
    last: bool,
    gathered: Unsharded,
) -> ChunkMemory:
    segments = _offloaded(resolved, _segments(resolved, kinds, groups))
    segments += [_mtp_segment(resolved, tail)] * mtp
    ends = head_memory(resolved, int(head) + mtp) if head or mtp else None
    old, boundary = stale(resolved, first, last), boundary_tensors(resolved, first, last)
    kept = boundary + sum(s.saved for s in segments) + (ends.norm + ends.loss if ends else 0.0)
    name = "loss_forward" if ends else "forward"
    forward = [Moment(name, kept, (ends.forward + gathered.loss if ends else gathered.forward) + old.forward)]
    running = boundary
    for segment in segments:
        running += segment.saved
        forward += [
            Moment(name, running, extra + old.forward + gathered.forward)
            for name, extra in (forward_moment(resolved, kind) for kind in set(segment.kinds))
        ]
    backward = _backward(resolved, segments, ends, kept, old.backward, gathered)
    if embedding and resolved.workload.recipe.lora is None:
        x = sizes(resolved).hidden_bytes if last else 0.0
        extra = embedding_backward(resolved) + old.backward - x + gathered.backward
        backward.append(Moment("embedding_backward", 0.0, extra))
    layers = [*kinds, *([tail] * mtp)]
    overlapped = resolved.workload.recipe.overlap_moe_expert_parallel_comm
    return ChunkMemory(
        # a combined forward and backward differentiates the old loss before it computes the new one
        # (Megatron-LM core/pipeline_parallel/combined_1f1b.py): its tensors never exist twice
        saved=kept - (ends.loss if ends and overlapped else 0.0),
        pending=sum(kept_until_weight_gradient(resolved, kind) for kind in layers),
        forward=max(forward, key=lambda moment: moment.total),
        backward=max(backward, key=lambda moment: moment.total),
    )


def _backward(
    resolved: Resolved,
    segments: list[_Segment],
    ends: HeadMemory | None,
    kept: float,
    old: float,
    gathered: Unsharded,
) -> list[Moment]:
    """Moments from the head down: each layer's backward with everything saved before it still there."""
    x = sizes(resolved).hidden_bytes
    moments = [Moment("backward", kept, old)]
    if ends is not None:
        moments.append(Moment("loss_backward", kept, ends.loss_backward + old - x + gathered.loss))
        product = ends.projection_backward + old - x + gathered.projection
        moments.append(Moment("head_backward", kept - ends.released, product))
        kept -= ends.norm + ends.loss
    seen: set[_Segment] = set()
    for segment in reversed(segments):
        if segment not in seen:
            seen.add(segment)
            name, extra = backward_moment(resolved, segment.kinds[-1])
            if segment.reruns or segment.returned:
                name = f"recompute_{name}"
            rerun = [forward_buffers(resolved) for kind in set(segment.kinds) if kind.moe and segment.reruns]
            extra = max([extra, *rerun]) + segment.returned + old + gathered.backward
            moments.append(Moment(name, kept, extra))
        kept -= segment.saved
    return moments


def _segments(resolved: Resolved, kinds: tuple[LayerKind, ...], groups: tuple[tuple[int, ...], ...]) -> list[_Segment]:
    plain: dict[LayerKind, Kept] = {kind: selective(resolved, kind) for kind in set(kinds)}
    x = sizes(resolved).hidden_bytes
    grouped = {group[0]: group for group in groups}
    inside = {i for group in groups for i in group}
    out: list[_Segment] = []
    for position, kind in enumerate(kinds):
        if position in grouped:
            own = tuple(kinds[i] for i in grouped[position])
            # everything the group saves but its input, which stayed; and its output
            everything = sum(sum(saved(resolved, k).values()) for k in own)
            kept = sum(named(resolved, k) for k in own)
            out.append(_Segment(own, x + kept, max(0.0, everything - kept), True))
        elif position not in inside:
            out.append(_Segment((kind,), plain[kind].saved, plain[kind].returned, plain[kind].reruns_experts))
    return out


def _offloaded(resolved: Resolved, segments: list[_Segment]) -> list[_Segment]:
    """Without what host memory has of each layer, but for the layers whose tensors are on their way."""
    number = min(resolved.workload.recipe.cpu_offloading_num_layers or 0, len(segments))

    def left(i: int, segment: _Segment) -> float:
        if i < number - RESIDENT:
            return 0.0
        if i < number or i >= len(segments) - RESIDENT:
            return segment.saved
        return segment.saved - sum(module_bytes(resolved, kind) for kind in segment.kinds)

    return [_Segment(s.kinds, left(i, s), s.returned, s.reruns) for i, s in enumerate(segments)]


def _mtp_segment(resolved: Resolved, kind: LayerKind) -> _Segment:
    """A prediction module: its layer (Megatron's full recompute passes it by), two norm inputs and the joined input of
    its projection, twice as wide."""
    size = sizes(resolved)
    layer = selective(resolved, kind)
    joining = 4 * size.hidden_bytes + 8.0 * size.shard
    return _Segment((kind,), layer.saved + joining, layer.returned, layer.reruns_experts)
