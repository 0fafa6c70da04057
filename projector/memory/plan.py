"""The memory plan of a run: for every pipeline rank the costliest moment of the schedule, and what it consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from projector.errors import InputError
from projector.frameworks.scope import as_layers_see, once_a_step
from projector.frameworks.types import Resolved
from projector.hardware.check import gpu_problems
from projector.hardware.types import Gpu
from projector.io.typed import of_type
from projector.memo import Recent
from projector.memory.chunks import ChunkMemory, Moment, chunk_memory
from projector.memory.parameters import stage
from projector.memory.state import State, state
from projector.memory.transients import unsharded
from projector.memory.verdict import TOO_CLOSE, Verdict, verdict
from projector.memory.workspaces import workspace_bytes
from projector.pipeline import InFlight, Schedule, Situations, choose, in_flight, situations
from projector.workload import validate
from projector.workload.composition import compositions
from projector.workload.layout import Chunk

__all__ = ["MemoryPlan", "RankMemory", "RankParts", "fullest", "least", "placement", "plan", "rank_parts"]

_GIB = 2.0**30


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
    ``fits``, ``tight`` (only when the allocator gives its cache back), ``out-of-memory`` or ``too-close`` (within
    ``tolerance``, the model's own error as a share; ``fits`` is then the better guess). ``event``: the moment
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
    tolerance: float
    event: str
    components: Mapping[str, float]

    @property
    def words(self) -> str:
        """The verdict in a few words."""
        if self.status == "too-close":
            sizes = f"{self.required / _GIB:.1f} of {self.usable / _GIB:.1f} GiB"
            return f"{TOO_CLOSE}: {sizes} ± {100 * self.tolerance:.0f} %"
        if self.status == "out-of-memory":
            return f"out of memory by {-self.margin_bytes / _GIB:.2f} GiB"
        return self.status


def plan(resolved: Resolved, gpu: Gpu, schedule: Schedule | None = None) -> MemoryPlan:
    """Peak memory per pipeline rank by replaying the schedule's order of forwards and backwards: that of ``schedule``
    where it has been made for the times at hand, else the one for equal times.

    Raises :class:`projector.errors.InputError` where the layout or the schedule does not fit the sizes, or a value is
    not of its type.
    """
    _check(resolved, gpu)
    ranks = _ranks(resolved, gpu.arch, _replayed(resolved) if schedule is None else situations(schedule))
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
        tolerance=result.tolerance,
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


def placement(resolved: Resolved) -> tuple[tuple[int, ...], ...]:
    """The virtual stages of every pipeline rank, chunk by chunk."""
    return _replayed(resolved).placement


def _replayed(resolved: Resolved) -> InFlight:
    recipe = resolved.workload.recipe
    vpp = max(1, len(compositions(resolved.workload.model, recipe)[0]) // recipe.pp)
    group = recipe.microbatch_group_size_per_vp_stage
    return in_flight(
        choose(recipe.pipeline_schedule, recipe.pp, vpp),
        recipe.pp,
        vpp,
        max(1, resolved.workload.num_microbatches),
        group if group and group >= recipe.pp else None,
        1 if recipe.overlap_moe_expert_parallel_comm and vpp > 1 else 0,
    )


def _ranks(resolved: Resolved, gpu_arch: str, played: InFlight) -> tuple[RankMemory, ...]:
    parts = _parts(resolved, gpu_arch, played.placement)
    return tuple(_rank(part, met) for part, met in zip(parts, played.ranks, strict=True))


_Own = tuple[Mapping[str, float], tuple[ChunkMemory, ...], State, float]
_OWN: Recent[_Own] = Recent(8192)


def _parts(resolved: Resolved, gpu_arch: str, placement: tuple[tuple[int, ...], ...]) -> tuple[RankParts, ...]:
    return tuple(RankParts(rank, *own) for rank, own in enumerate(_owned(resolved, gpu_arch, placement)))


def _owned(resolved: Resolved, gpu_arch: str, placement: tuple[tuple[int, ...], ...]) -> list[_Own]:
    """The fields of :class:`RankParts` for every rank; one object for ranks that hold the same, of this run or another."""
    layout, kinds = compositions(resolved.workload.model, resolved.workload.recipe)
    last = len(layout) - 1
    run = as_layers_see(resolved), once_a_step(resolved), gpu_arch
    found: list[_Own] = []
    for own in placement:
        key = (*run, *((kinds[v], v == 0, v == last) for v in own))
        found.append(_OWN.get(key, partial(_part, resolved, gpu_arch, [layout[v] for v in own], layout)))
    return found


def _part(resolved: Resolved, gpu_arch: str, own: list[Chunk], layout: tuple[Chunk, ...]) -> _Own:
    kinds = resolved.workload.model.layer_kinds
    held = stage(resolved, own)
    kept: State = state(resolved, held, gpu_arch)
    gathered = unsharded(resolved, held)
    moe = any(kinds[i].moe for chunk in own for i in chunk.layers)
    static = kept.components() | {
        "workspaces": workspace_bytes(resolved, gpu_arch, moe=moe, head=any(c.head or c.mtp for c in own))
    }
    memories = tuple(chunk_memory(resolved, c, c is layout[0], c is layout[-1], gathered) for c in own)
    return static, memories, kept, held.weights.total + held.adapters


def fullest(resolved: Resolved, gpu: Gpu, schedule: Schedule | None = None) -> tuple[float, Verdict]:
    """Allocated bytes of the fullest rank, and whether they fit: what :func:`plan` says of a settled run, in short."""
    played = _replayed(resolved) if schedule is None else situations(schedule)
    every = _PLAYED.get(played, partial(_Everywhere, played))
    own = _owned(resolved, gpu.arch, played.placement)
    each = np.array([[_bytes(memory) for memory in memories] for _, memories, _, _ in own])
    kept = np.array([(sum(static.values()), state.step, state.construction) for static, _, state, _ in own])
    highest = np.maximum(every.peaks(each), kept[:, 1])
    most = float(np.maximum(kept[:, 0] + highest, kept[:, 2]).max())
    return most, verdict(resolved, most, gpu)


def least(resolved: Resolved, gpu: Gpu) -> Verdict:
    """Whether the run could fit at all: with one micro-batch alive, the least that :func:`fullest` finds in any order."""
    own = _owned(resolved, gpu.arch, placement(resolved))
    most = max(
        max(sum(static.values()) + max(state.step, *(m.forward.total for m in memories)), state.construction)
        for static, memories, state, _ in own
    )
    return verdict(resolved, most, gpu)


class _Everywhere:
    """The situations of all ranks, one after the other."""

    def __init__(self, played: InFlight) -> None:
        counts = [len(met.chunk) for met in played.ranks]
        self._starts = np.cumsum([0, *counts[:-1]])
        self._rank = np.repeat(np.arange(len(counts)), counts)
        self._forward = np.concatenate([met.forward for met in played.ranks])
        self._chunk = np.concatenate([met.chunk for met in played.ranks])
        self._alive = np.concatenate([met.alive for met in played.ranks])
        self._pending = np.concatenate([met.pending for met in played.ranks])

    def peaks(self, each: NDArray[np.float64]) -> NDArray[np.float64]:
        """``[pp]``: bytes at the costliest situation of each rank. ``each`` ``[pp, chunks, 4]``: see :func:`_bytes`."""
        rank = self._rank
        moment = np.where(self._forward, each[rank, self._chunk, 2], each[rank, self._chunk, 3])
        total = (self._alive * each[rank, :, 0]).sum(axis=1) + (self._pending * each[rank, :, 1]).sum(axis=1) + moment
        return np.asarray(np.maximum.reduceat(total, self._starts))


_PLAYED: Recent[_Everywhere] = Recent(256)


def _bytes(memory: ChunkMemory) -> tuple[float, float, float, float]:
    """Saved, pending, all at the costliest moment of a forward, and of a backward beside what is saved: the alive count of
    a backward includes its own micro-batch, whose saved bytes are part of its moment."""
    return memory.saved, memory.pending, memory.forward.total, memory.backward.total - memory.saved


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
    base, total = _situations(memories, met)
    index = int(np.argmax(total))
    memory = memories[int(met.chunk[index])]
    if met.forward[index]:
        return Moment(memory.forward.name, float(base[index]) + memory.forward.saved, memory.forward.transient)
    others = float(base[index]) - memory.saved
    return Moment(memory.backward.name, others + memory.backward.saved, memory.backward.transient)


def _situations(memories: Sequence[ChunkMemory], met: Situations) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bytes in each situation: what others keep, and all."""
    saved, pending, forward, backward = np.array([_bytes(memory) for memory in memories]).T
    base = met.alive @ saved + met.pending @ pending
    return base, base + np.where(met.forward, forward[met.chunk], backward[met.chunk])
