"""The memory plan of a run: for every pipeline rank the costliest moment of the schedule, and what it consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from projector.errors import InputError
from projector.frameworks.types import Resolved
from projector.hardware.check import gpu_problems
from projector.hardware.types import Gpu
from projector.io.typed import of_type
from projector.memory.chunks import ChunkMemory, Moment, chunk_memory
from projector.memory.in_flight import Replay, Situations, replay
from projector.memory.parameters import stage
from projector.memory.state import State, state
from projector.memory.transients import unsharded
from projector.memory.verdict import Verdict, verdict
from projector.memory.workspaces import workspace_bytes
from projector.pipeline import choose
from projector.workload import validate
from projector.workload.layout import Chunk, chunks

__all__ = ["MemoryPlan", "RankMemory", "RankParts", "plan", "rank_parts"]


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One pipeline rank at its peak. ``components``: bytes by what they are, summing to ``allocated``: ``weights,
    gradients, master_weights, moments, dummy_wgrad, fp8_weight_cache, workspaces, activations, transient``.
    ``event``: the moment of the peak. ``parameters``: elements it holds."""

    rank: int
    components: Mapping[str, float]
    allocated: float
    event: str
    parameters: float

    @property
    def static(self) -> float:
        """Bytes that never leave: everything but activations and transients."""
        return self.allocated - self.components["activations"] - self.components["transient"]


@dataclass(frozen=True)
class MemoryPlan:
    """Peak memory of a run, bytes, of the fullest rank; ``ranks`` has every pipeline rank.

    ``allocated``: live tensors (Megatron-LM's "max allocated"). ``reserved``: what the caching allocator holds
    (torchtitan's figure). ``device``: reserved, context and communication buffers (nvidia-smi, rocm-smi). ``required``:
    the least a device (or the framework's own pool) must offer; ``usable``: what it offers; ``margin_bytes`` = usable −
    required, and ``fits`` is margin ≥ 0. ``status``:
    ``fits``, ``tight`` (only when the allocator gives its cache back) or ``out-of-memory``. ``event``: the moment
    of the peak; ``components``: what it consists of (sums to ``allocated``).
    """

    ranks: tuple[RankMemory, ...]
    allocated: float
    reserved: float
    device: float
    required: float
    usable: float
    margin_bytes: float
    fits: bool
    status: str
    event: str
    components: Mapping[str, float]


def plan(resolved: Resolved, gpu: Gpu) -> MemoryPlan:
    """Peak memory per pipeline rank by replaying the schedule's order of forwards and backwards.

    Raises :class:`projector.errors.InputError` where the layout or the schedule does not fit the sizes, or a value is
    not of its type.
    """
    _check(resolved, gpu)
    ranks = _ranks(resolved, gpu.arch)
    fullest = max(ranks, key=lambda rank: rank.allocated)
    result: Verdict = verdict(resolved, fullest.allocated, gpu)
    return MemoryPlan(
        ranks=ranks,
        allocated=fullest.allocated,
        reserved=result.reserved,
        device=result.device,
        required=result.required,
        usable=result.usable,
        margin_bytes=result.margin,
        fits=result.margin >= 0,
        status=result.status,
        event=fullest.event,
        components=fullest.components,
    )


def _check(resolved: Resolved, gpu: Gpu) -> None:
    wrong = list(gpu_problems(gpu))
    wrong += of_type(resolved, Resolved, "") or validate.value_problems(resolved.workload)
    if wrong:
        raise InputError(wrong)


@dataclass(frozen=True)
class RankParts:
    """What one pipeline rank holds: ``static`` bytes by component, its model chunks' memory in its own order of chunks,
    the bytes of its ``state`` and its parameters (elements)."""

    rank: int
    static: Mapping[str, float]
    chunks: tuple[ChunkMemory, ...]
    state: State
    parameters: float


def rank_parts(resolved: Resolved, gpu: Gpu) -> tuple[RankParts, ...]:
    """The parts of every pipeline rank. Raises as :func:`plan`."""
    return _parts(resolved, gpu.arch, _replayed(resolved).placement)


def _replayed(resolved: Resolved) -> Replay:
    recipe = resolved.workload.recipe
    vpp = max(1, len(chunks(resolved.workload.model, recipe)) // recipe.pp)
    group = recipe.microbatch_group_size_per_vp_stage
    return replay(
        choose(recipe.pipeline_schedule, recipe.pp, vpp),
        recipe.pp,
        vpp,
        max(1, resolved.workload.num_microbatches),
        group if group and group >= recipe.pp else None,
        1 if recipe.overlap_moe_expert_parallel_comm and vpp > 1 else 0,
    )


def _ranks(resolved: Resolved, gpu_arch: str) -> tuple[RankMemory, ...]:
    played = _replayed(resolved)
    parts = _parts(resolved, gpu_arch, played.placement)
    return tuple(_rank(part, met) for part, met in zip(parts, played.ranks, strict=True))


def _parts(resolved: Resolved, gpu_arch: str, placement: tuple[tuple[int, ...], ...]) -> tuple[RankParts, ...]:
    layout = chunks(resolved.workload.model, resolved.workload.recipe)
    return tuple(
        _part(resolved, gpu_arch, rank, [layout[stage] for stage in own], layout) for rank, own in enumerate(placement)
    )


def _part(resolved: Resolved, gpu_arch: str, rank: int, own: list[Chunk], layout: tuple[Chunk, ...]) -> RankParts:
    kinds = resolved.workload.model.layer_kinds
    held = stage(resolved, own)
    kept: State = state(resolved, held, gpu_arch)
    gathered = unsharded(resolved, held)
    moe = any(kinds[i].moe for chunk in own for i in chunk.layers)
    static = kept.components() | {
        "workspaces": workspace_bytes(resolved, gpu_arch, moe=moe, head=any(c.head or c.mtp for c in own))
    }
    memories = tuple(chunk_memory(resolved, c, c is layout[0], c is layout[-1], gathered) for c in own)
    return RankParts(rank, static, memories, kept, held.weights.total + held.adapters)


def _rank(part: RankParts, met: Situations) -> RankMemory:
    static, kept = dict(part.static), part.state
    peak = _peak(part.chunks, met)
    persistent = sum(static.values())
    if kept.step > peak.total:
        peak = Moment("optimizer_step", 0.0, kept.step)
    if kept.construction > persistent + peak.total:
        static = dict.fromkeys(static, 0.0) | {"weights": kept.weights, "gradients": kept.gradients}
        peak = Moment("construction", 0.0, kept.construction - kept.weights - kept.gradients)
    components = static | {"activations": peak.saved, "transient": peak.transient}
    return RankMemory(part.rank, components, sum(components.values()), peak.name, part.parameters)


def _peak(memories: Sequence[ChunkMemory], met: Situations) -> Moment:
    """The costliest situation: what other micro-batches and chunks keep, and the moment of the chunk that works."""
    forward = np.array([m.forward.total for m in memories])
    # the alive count of a backward includes its own micro-batch, whose saved bytes are part of its moment
    backward = np.array([m.backward.total - m.saved for m in memories])
    base = met.alive @ np.array([m.saved for m in memories])
    base += met.pending @ np.array([m.pending for m in memories])
    total = base + np.where(met.forward, forward[met.chunk], backward[met.chunk])
    index = int(np.argmax(total))
    memory = memories[int(met.chunk[index])]
    if met.forward[index]:
        return Moment(memory.forward.name, float(base[index]) + memory.forward.saved, memory.forward.transient)
    others = float(base[index]) - memory.saved
    return Moment(memory.backward.name, others + memory.backward.saved, memory.backward.transient)
