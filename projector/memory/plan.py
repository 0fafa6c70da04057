"""The memory plan of a run: for every pipeline rank the costliest moment of the schedule, and what it consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from projector.dataclass import dataclass
from projector.errors import InputError
from projector.frameworks.types import Resolved
from projector.hardware.check import gpu_problems
from projector.hardware.types import Gpu
from projector.io.typed import of_type
from projector.mechanisms.allocator import Allocator
from projector.memory.chunks import ChunkMemory, Moment
from projector.memory.holding import RankHoldings, holdings, in_flight_of
from projector.memory.verdict import TOO_CLOSE, Verdict, verdict
from projector.pipeline import InFlight, Schedule, Situations, situations
from projector.workload import validate

_GIB = 2.0**30
_VERDICTS = {
    "fits": "Fits",
    "tight": "Fits when the allocator gives its cache back",
    "too-close": "Too close to tell whether it fits",
    "out-of-memory": "Does not fit",
}


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One pipeline rank at its peak. ``components``: bytes by name, summing to ``allocated``: ``weights, gradients,
    master_weights, moments, dummy_wgrad, fp8_weight_cache, workspaces, activations, transient``. ``event``: the moment
    of the peak. ``parameters``: elements it holds. ``cached``: bytes that the allocator keeps of the other moment, step
    or backward, where the blocks of one are no place for the other (AMD-AGI/Primus@26bd1cc7
    deepseek-v4/develop/progress/p36: 119 GiB allocated at the most, 120 reserved after the first step, 156 after the
    second; deepspeed/runtime/bf16_optimizer.py, ``initialize_optimizer_states``, on how to prevent it), and free blocks
    that nothing fits at the peak: a block of the caching allocator is one request's, or split for smaller ones, never
    joined with another segment (torch c10/cuda/CUDACachingAllocator.cpp, ``get_free_block``, ``try_merge_blocks``)."""

    rank: int
    components: Mapping[str, float]
    allocated: float
    event: str
    parameters: float
    cached: float = 0.0

    @property
    def held(self) -> float:
        """Returns the most that the allocator sees: live bytes and those it keeps of the other moment."""
        return self.allocated + self.cached

    @property
    def static(self) -> float:
        """Returns the bytes that never leave: everything but activations and transients."""
        return self.allocated - self.components["activations"] - self.components["transient"]


@dataclass(frozen=True)
class MemoryPlan(Verdict):
    """Peak memory of a run, bytes, of the fullest rank; ``ranks`` has every pipeline rank.

    ``allocated``: live tensors (Megatron-LM's "max allocated"), of which ``reserved`` is torchtitan's figure and
    ``device`` that of nvidia-smi and rocm-smi. ``event``: the moment of the peak; ``components``: what it consists of
    (sums to ``allocated``).
    """

    ranks: tuple[RankMemory, ...]
    allocated: float
    event: str
    components: Mapping[str, float]

    @property
    def order(self) -> int:
        """Returns the rank of a run before its speed counts: 0 where it fits, 1 where that is too close to tell, 2
        where it does not fit."""
        return {"too-close": 1, "out-of-memory": 2}.get(self.status, 0)

    @property
    def verdict(self) -> str:
        """Returns in words whether the run fits, and by how much."""
        size = f"{abs(self.margin_bytes) / _GIB:.2f} GiB {'to spare' if self.fits else 'too much'} on the fullest GPU"
        near = (
            f", and the model of memory is good to {100 * self.tolerance:.0f} %" if self.status == "too-close" else ""
        )
        return f"{_VERDICTS[self.status]}: {size}{near}"

    def __repr__(self) -> str:
        return f"{self.words}; {self.required / _GIB:.2f} of {self.usable / _GIB:.2f} GiB"

    def plot(self) -> Any:
        """Returns a matplotlib figure with every pipeline rank at its peak. Needs matplotlib."""
        from projector.memory.draw import drawn

        return drawn(self, (), "")

    @property
    def words(self) -> str:
        """Returns the verdict in a few words."""
        if self.status == "too-close":
            sizes = f"{self.required / _GIB:.1f} of {self.usable / _GIB:.1f} GiB"
            return f"{TOO_CLOSE}: {sizes} ± {100 * self.tolerance:.0f} %"
        if self.status == "out-of-memory":
            return f"out of memory by {-self.margin_bytes / _GIB:.2f} GiB"
        return self.status


def plan(resolved: Resolved, gpu: Gpu, schedule: Schedule | None = None) -> MemoryPlan:
    """Returns the peak memory per pipeline rank by replaying the schedule's order of forwards and backwards: that of
    ``schedule`` where it has been made for the times at hand, else the one for equal times.

    Raises :class:`projector.errors.InputError` where the layout or the schedule does not fit the sizes, or a value is
    not of its type.
    """
    _check(resolved, gpu)
    ranks = _ranks(resolved, gpu.arch, in_flight_of(resolved) if schedule is None else situations(schedule))
    fullest = max(ranks, key=lambda rank: rank.allocated)
    found = verdict(resolved, fullest.allocated, gpu, max(rank.held for rank in ranks))
    peak = {name: getattr(fullest, name) for name in ("allocated", "event", "components")}
    return MemoryPlan(ranks=ranks, **vars(found), **peak)


def _check(resolved: Resolved, gpu: Gpu) -> None:
    wrong = list(gpu_problems(gpu))
    wrong += of_type(resolved, Resolved, "") or validate.value_problems(resolved.workload)
    if wrong:
        raise InputError(wrong)


def _ranks(resolved: Resolved, gpu_arch: str, flight: InFlight) -> tuple[RankMemory, ...]:
    own = holdings(resolved, gpu_arch, flight.placement)
    allocator = resolved.execution.allocator
    return tuple(_rank(rank, allocator, *each) for rank, each in enumerate(zip(own, flight.ranks, strict=True)))


def _rank(rank: int, allocator: Allocator, own: RankHoldings, met: Situations) -> RankMemory:
    static, kept = own.kept.components, own.kept.state
    peak = _peak(own.chunks, met)
    persistent = own.kept.total
    cached = 0.0 if allocator.planned or allocator.states_first else min(kept.step, peak.total)
    cached = max(0.0, cached + (0.0 if allocator.planned else peak.stranded))
    if kept.step > peak.total:
        peak = Moment("optimizer_step", 0.0, kept.step)
    if kept.construction > persistent + peak.total:
        there = {name: static[name] for name in ("weights", "gradients")}
        static = dict.fromkeys(static, 0.0) | there
        peak = Moment("construction", 0.0, kept.construction - there["weights"] - there["gradients"])
    there = {"gradients": static["gradients"] - peak.absent}
    components = static | there | {"activations": peak.saved, "transient": peak.transient}
    return RankMemory(rank, components, sum(components.values()), peak.name, own.kept.parameters, cached)


def _peak(memories: Sequence[ChunkMemory], met: Situations) -> Moment:
    """Returns the costliest situation: bytes of other micro-batches and chunks, and the moment of the working chunk."""
    base, total = met.bytes(np.array([memory.sizes for memory in memories]))
    index = int(np.argmax(total))
    memory = memories[int(met.chunk[index])]
    if met.forward[index]:
        return memory.forward._replace(saved=float(base[index]) + memory.forward.saved)
    others = float(base[index]) - memory.saved
    return memory.backward._replace(saved=others + memory.backward.saved)
