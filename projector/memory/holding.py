"""What every pipeline rank holds: weights and their state, workspaces, the memory of its model chunks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass
from projector.frameworks.scope import as_layers_see, once_a_step
from projector.frameworks.types import Resolved
from projector.mechanisms.data_parallel import Gathered
from projector.memo import Recent
from projector.memory.chunks import ChunkMemory, chunk_memory
from projector.memory.parameters import Contents, Weights, contents, stage, weights_of
from projector.memory.state import State, state
from projector.memory.transients import unsharded
from projector.memory.workspaces import workspace_bytes
from projector.pipeline import InFlight, choose, in_flight
from projector.workload.composition import Composition, compositions

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Kept:
    """What one rank never gives back of its weights and their state: bytes by component, ``total`` of them."""

    components: Mapping[str, float]
    total: float
    state: State
    gathered: Gathered
    parameters: float


@dataclass(frozen=True, slots=True)
class Holding:
    """All that one rank holds: ``static`` bytes that never leave, and its ``chunks``."""

    kept: Kept
    workspaces: float
    chunks: tuple[ChunkMemory, ...]

    @property
    def static(self) -> float:
        return self.kept.total + self.workspaces

    @property
    def components(self) -> dict[str, float]:
        """What ``static`` consists of."""
        return {**self.kept.components, "workspaces": self.workspaces}


class Sizes(NamedTuple):
    """Bytes of every rank: ``chunks`` ``[pp, chunks, 4]`` (:attr:`ChunkMemory.sizes`); ``fixed`` ``[pp, 3]``: what never
    leaves, what the optimizer step adds, the peak of the construction. ``outside``: what is not the framework's."""

    chunks: Floats
    fixed: Floats
    outside: float


_KEPT: Recent[Kept] = Recent(4096)
_CHUNKS: Recent[ChunkMemory] = Recent(8192)
_WORKSPACES: Recent[float] = Recent(1024)


def heaviest(resolved: Resolved, gpu_arch: str, placement: tuple[tuple[int, ...], ...]) -> float:
    """Bytes that the fullest rank needs for weights and their state, whatever passes through them: no layer is lowered."""
    _, kinds = compositions(resolved.workload.model, resolved.workload.recipe)
    weighed, _ = _seen(resolved, gpu_arch)
    ranks = {contents(tuple([kinds[v] for v in own])) for own in placement}
    each = [_known(resolved, gpu_arch, inside, weighed) for inside in ranks]
    return max(max(one.total, one.state.construction) for one in each)


def _known(resolved: Resolved, gpu_arch: str, inside: Contents, weighed: Hashable) -> Kept:
    of = partial(weights_of, resolved)
    return _KEPT.get((weighed, inside), partial(kept, resolved, gpu_arch, inside, of))


def _seen(resolved: Resolved, gpu_arch: str) -> tuple[tuple[Hashable, ...], tuple[Hashable, ...]]:
    """What weights depend on, and what tensors do."""
    weighed = as_layers_see(resolved), once_a_step(resolved), gpu_arch
    return weighed, (as_layers_see(resolved), gpu_arch, resolved.workload.recipe.recompute_num_layers)


def holdings(resolved: Resolved, gpu_arch: str, placement: tuple[tuple[int, ...], ...]) -> list[Holding]:
    """What every rank holds; one object for ranks that hold the same."""
    _, kinds = compositions(resolved.workload.model, resolved.workload.recipe)
    weighed, seen = _seen(resolved, gpu_arch)
    last = len(kinds) - 1
    ends = {0: (kinds[0], True, last == 0), last: (kinds[last], last == 0, True)}
    known: dict[tuple[object, ...], Holding] = {}
    found = []
    for own in placement:
        held = tuple([ends.get(v) or (kinds[v], False, False) for v in own])
        if held not in known:
            known[held] = _holding(resolved, gpu_arch, held, weighed, seen)
        found.append(known[held])
    return found


def _holding(
    resolved: Resolved,
    gpu_arch: str,
    held: Sequence[tuple[Composition, bool, bool]],
    weighed: tuple[Hashable, ...],
    seen: tuple[Hashable, ...],
) -> Holding:
    """``held``: of each chunk its composition, and whether it begins or ends the model; ``weighed``, ``seen``: what weights
    and tensors depend on beside it."""
    inside = contents(tuple([kind for kind, _, _ in held]))
    own = _known(resolved, gpu_arch, inside, weighed)
    moe, head = any(kind.moe for kind, _ in inside.layers), bool(inside.head or inside.mtp)
    spaces = _WORKSPACES.get((seen, moe, head), partial(workspace_bytes, resolved, gpu_arch, moe=moe, head=head))
    chunks = tuple(
        [_CHUNKS.get((seen, own.gathered, what), partial(chunk_memory, resolved, *what, own.gathered)) for what in held]
    )
    return Holding(own, spaces, chunks)


def kept(resolved: Resolved, gpu_arch: str, own: Contents, of: Callable[[Hashable], Weights]) -> Kept:
    """Of one rank. ``of``: the weights of its blocks."""
    held = stage(resolved, own, of)
    made: State = state(resolved, held, gpu_arch)
    components = made.components()
    return Kept(
        components, sum(components.values()), made, unsharded(resolved, held), held.weights.total + held.adapters
    )


def placement(resolved: Resolved) -> tuple[tuple[int, ...], ...]:
    """The virtual stages of every pipeline rank, chunk by chunk."""
    return played(resolved).placement


def played(resolved: Resolved) -> InFlight:
    """What is alive where in the order of its schedule for equal times. Raises :class:`InputError` where it cannot run."""
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
