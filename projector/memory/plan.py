"""The memory plan of a run: for every pipeline rank the costliest moment of the schedule, and what it consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from projector.frameworks.types import Resolved
from projector.hardware.types import Gpu
from projector.memory.chunks import ChunkMemory, Moment, chunk_memory
from projector.memory.in_flight import Situations, replay
from projector.memory.parameters import stage
from projector.memory.state import State, state
from projector.memory.transients import unsharded
from projector.memory.verdict import Verdict, verdict
from projector.memory.workspaces import workspace_bytes
from projector.pipeline import choose
from projector.workload.layout import Chunk, chunks

__all__ = ["MemoryPlan", "RankMemory", "plan"]


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
    the least a device must offer; ``margin_bytes`` = usable − required, and ``fits`` is margin ≥ 0. ``status``:
    ``fits``, ``tight`` (only when the allocator gives its cache back) or ``out-of-memory``. ``event``: the moment
    of the peak; ``components``: what it consists of (sums to ``allocated``).
    """

    ranks: tuple[RankMemory, ...]
    allocated: float
    reserved: float
    device: float
    required: float
    margin_bytes: float
    fits: bool
    status: str
    event: str
    components: Mapping[str, float]


def plan(resolved: Resolved, gpu: Gpu) -> MemoryPlan:
    """Peak memory per pipeline rank by replaying the schedule's order of forwards and backwards.

    Raises :class:`projector.errors.InputError` where the layout or the schedule does not fit the sizes.
    """
    ranks = _ranks(resolved, gpu.arch)
    fullest = max(ranks, key=lambda rank: rank.allocated)
    result: Verdict = verdict(resolved, fullest.allocated, gpu.usable_memory_bytes)
    return MemoryPlan(
        ranks=ranks,
        allocated=fullest.allocated,
        reserved=result.reserved,
        device=result.device,
        required=result.required,
        margin_bytes=result.margin,
        fits=result.margin >= 0,
        status=result.status,
        event=fullest.event,
        components=fullest.components,
    )


def _ranks(resolved: Resolved, gpu_arch: str) -> tuple[RankMemory, ...]:
    workload = resolved.workload
    recipe = workload.recipe
    layout = chunks(workload.model, recipe)
    vpp = max(1, len(layout) // recipe.pp)
    group = recipe.microbatch_group_size_per_vp_stage
    played = replay(
        choose(recipe.pipeline_schedule, recipe.pp, vpp),
        recipe.pp,
        vpp,
        max(1, workload.num_microbatches),
        group if group and group >= recipe.pp else None,
        1 if recipe.overlap_moe_expert_parallel_comm and vpp > 1 else 0,
    )
    return tuple(
        _rank(resolved, gpu_arch, rank, [layout[s] for s in played.placement[rank]], layout, played.ranks[rank])
        for rank in range(recipe.pp)
    )


def _rank(
    resolved: Resolved,
    gpu_arch: str,
    rank: int,
    own: list[Chunk],
    layout: tuple[Chunk, ...],
    met: Situations,
) -> RankMemory:
    kinds = resolved.workload.model.layer_kinds
    held = stage(resolved, own)
    kept: State = state(resolved, held, gpu_arch)
    gathered = unsharded(resolved, held)
    moe = any(kinds[i].moe for chunk in own for i in chunk.layers)
    static = kept.components() | {
        "workspaces": workspace_bytes(resolved, gpu_arch, moe=moe, head=any(c.head or c.mtp for c in own))
    }
    memories = [chunk_memory(resolved, c, c is layout[0], c is layout[-1], gathered) for c in own]
    peak = _peak(memories, met)
    persistent = sum(static.values())
    if kept.step > peak.total:
        peak = Moment("optimizer_step", 0.0, kept.step)
    if kept.construction > persistent + peak.total:
        static = dict.fromkeys(static, 0.0) | {"weights": kept.weights, "gradients": kept.gradients}
        peak = Moment("construction", 0.0, kept.construction - kept.weights - kept.gradients)
    components = static | {"activations": peak.saved, "transient": peak.transient}
    return RankMemory(rank, components, sum(components.values()), peak.name, held.weights.total + held.adapters)


def _peak(memories: list[ChunkMemory], met: Situations) -> Moment:
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
