"""The bytes of every pipeline rank: weights and their state, workspaces, the memory of its model chunks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.layers import few_bits
from projector.layers.local import local
from projector.mechanisms.data_parallel import Gathered
from projector.memo import cached_on
from projector.memory.chunks import ChunkMemory, block_memory, chunk_memory
from projector.memory.parameters import Contents, Weights, contents, stage, weights_of
from projector.memory.state import State, state
from projector.memory.transients import unsharded
from projector.operators.types import GROUPED_STREAMS
from projector.parameter import parameter
from projector.pipeline import InFlight, choose, generator, in_flight
from projector.size import Floats
from projector.workload.composition import Composition, compositions


@dataclass(frozen=True, slots=True)
class StaticMemory:
    """Bytes that one rank never gives back, by component, and their ``total``; ``parameters``: elements that it holds."""

    components: dict[str, float]
    total: float
    state: State
    gathered: Gathered
    parameters: float


class RankHoldings(NamedTuple):
    """All memory of one rank: the bytes that stay, and the memory of its chunks."""

    kept: StaticMemory
    chunks: tuple[ChunkMemory, ...]


class Placed(NamedTuple):
    """A chunk, and whether it begins or ends the model."""

    kind: Composition
    first: bool
    last: bool


class Sizes(NamedTuple):
    """Bytes of every rank of runs on one pipeline: ``chunks`` ``[runs, pp, chunks, 4]`` (:attr:`ChunkMemory.sizes`);
    ``fixed`` ``[runs, pp, 3]``: what never leaves, what the optimizer step adds, the peak of the construction;
    ``outside`` ``[runs]``: bytes outside the framework's allocator."""

    chunks: Floats
    fixed: Floats
    outside: Floats


@dataclass(frozen=True, eq=False)
class Pipeline:
    """The places of the layers of a run. ``kinds``: of its virtual stages, in order; ``placement[rank][chunk]``: the
    index of the chunk's virtual stage."""

    kinds: tuple[Composition, ...]
    placement: tuple[tuple[int, ...], ...]

    @cached_property
    def chunks(self) -> tuple[tuple[Placed, ...], ...]:
        """Returns the chunks of every rank."""
        last = len(self.kinds) - 1
        each = [Placed(kind, v == 0, v == last) for v, kind in enumerate(self.kinds)]
        return tuple(tuple([each[v] for v in own]) for own in self.placement)

    @cached_property
    def held(self) -> tuple[tuple[Contents, tuple[Placed, ...]], ...]:
        """Returns contents and chunks of ranks, once for all ranks that hold the same."""
        return tuple((contents(tuple([kind for kind, *_ in own])), own) for own in dict.fromkeys(self.chunks))

    @cached_property
    def ranks(self) -> NDArray[np.intp]:
        """Returns ``[pp]``: the index into :attr:`held` of each rank."""
        places = {own: place for place, (_, own) in enumerate(self.held)}
        return np.array([places[own] for own in self.chunks])

    @cached_property
    def contents(self) -> tuple[Contents, ...]:
        """Returns what each pipeline rank holds: its layers, embedding and head, in the order of its chunks."""
        return tuple(self.held[place][0] for place in self.ranks)

    @cached_property
    def stages(self) -> tuple[Contents, ...]:
        """Returns what each virtual stage holds."""
        return tuple(contents((kind,)) for kind in self.kinds)


def pipeline(run: Resolved, placement: tuple[tuple[int, ...], ...], known: dict[Hashable, Pipeline]) -> Pipeline:
    """Returns one object for all equal pipelines. Raises :class:`InputError` where layers cannot be split so."""
    _, kinds = compositions(run.workload.model, run.workload.recipe)
    return known.setdefault((kinds, placement), Pipeline(kinds, placement))


@cached_on(0)
def holdings(resolved: Resolved, gpu_arch: str, placement: tuple[tuple[int, ...], ...]) -> tuple[RankHoldings, ...]:
    """Returns what every rank holds; one object for ranks that hold the same."""
    own, saved = pipeline(resolved, placement, {}), partial(block_memory, resolved)
    each = []
    for inside, chunks in own.held:
        one = static_memory(resolved, gpu_arch, inside, partial(weights_of, resolved))
        each.append(RankHoldings(one, tuple(chunk_memory(resolved, *what, one.gathered, saved) for what in chunks)))
    return tuple(each[place] for place in own.ranks)


def static_memory(resolved: Resolved, gpu_arch: str, own: Contents, of: Callable[[Hashable], Weights]) -> StaticMemory:
    """Returns the bytes that one rank with the contents ``own`` never gives back. ``of``: returns the weights of a block."""
    held = stage(resolved, own, of)
    made = state(resolved, held, gpu_arch)
    moe, head = any(kind.moe for kind, _ in own.layers), bool(own.head or own.mtp)
    spaces = workspace_bytes(resolved, gpu_arch, moe=moe, head=head)
    spaces += few_bits.scratch(resolved, held.weights, local(resolved).act)
    components = made.components | {"workspaces": spaces}
    return StaticMemory(
        components, sum(components.values()), made, unsharded(resolved, held), held.weights.total + held.adapters
    )


def placement(resolved: Resolved) -> tuple[tuple[int, ...], ...]:
    """Returns the virtual stages of every pipeline rank, chunk by chunk."""
    return in_flight_of(resolved).placement


def tuned(resolved: Resolved) -> bool:
    """Returns whether the order of the schedule depends on the times of its stages."""
    recipe = resolved.workload.recipe
    return generator(choose(recipe.pipeline_schedule, recipe.pp, recipe.vpp)).tuned is not None


def in_flight_of(resolved: Resolved) -> InFlight:
    """Returns what is alive in the order of the run's schedule for equal times. Raises :class:`InputError` if it cannot
    run."""
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


_MIB = 2.0**20

# from compute capability 9 on, and before
_TE_LARGE, _TE_SMALL = parameter(
    (32 * _MIB + 1024, 4 * _MIB), unit="B", kind="published", source="TransformerEngine pytorch/cpp_extensions/gemm.py"
)
_TE_SMALL_ARCHS = frozenset({"volta", "turing", "ampere", "ada", "x86_64"})
# by architecture, and for any other
_TORCH_BLAS, _TORCH_BLAS_DEFAULT = parameter(
    ({"hopper": 32 * _MIB, "gfx90a": 32 * _MIB, "gfx942": 128 * _MIB, "gfx950": 128 * _MIB}, 8.125 * _MIB),
    unit="B",
    kind="published",
    source="torch aten/src/ATen/cuda/CublasHandlePool.cpp: default workspace of one (handle, stream) pair",
)
_THREADS = parameter(2, kind="published", source="the forward and the autograd thread have a handle each")


def workspace_bytes(resolved: Resolved, gpu_arch: str, *, moe: bool, head: bool) -> float:
    """Returns the bytes of workspaces on one rank. ``moe``: it holds experts; ``head``: it holds the output layer."""
    workload = resolved.workload
    model, recipe, view = workload.model, workload.recipe, local(resolved)
    megatron = resolved.execution.data_parallel.megatron_core
    one = _TE_SMALL if gpu_arch in _TE_SMALL_ARCHS else _TE_LARGE
    # cached rotation angles of the rank's part of the sequence, fp32 (MLA: cosine and sine)
    width = 2 * model.mla.qk_pos_emb_head_dim if model.mla else model.kv_channels
    total = 4.0 * (recipe.seq_length // recipe.cp) * width if "rope" in model.position_embedding_type else 0.0
    if megatron:
        total += one * (1 + (GROUPED_STREAMS if moe else 0))
        total += 3 * one if recipe.tp_comm_overlap and recipe.tp > 1 else 0.0
    if head or not megatron:
        # torch.matmul runs only in Megatron's output layer; elsewhere in every linear
        total += _THREADS * _TORCH_BLAS.get(gpu_arch, _TORCH_BLAS_DEFAULT)
    if head and megatron and view.sp:
        # the global buffer that the output layer gathers its input into
        total += view.gathered_bytes
    if model.mtp_num_layers and head and view.sp:
        total += view.gathered_bytes
    return total
