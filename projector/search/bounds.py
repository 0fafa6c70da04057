"""What configurations need of memory, and seconds that none of them beats: from weights alone, from the order of a
schedule, from the prices of its stages; and for all pipelines of one family at once. What a block adds to its stage is the
same on every pipeline, so that a few priced stages bound all others by counting blocks.

A family is one choice of sizes and of what layers see, with schedules that split the backward in the same way. The device's
seconds of a stage are the sum over its blocks, as are the host's (:func:`projector.step.timing.join`): a stage takes at
least the larger of both. How they take turns between points of synchronisation, and what is waited for, is left out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from projector.errors import InputError, Unsupported
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster
from projector.kernels.settings import Settings
from projector.memory.holding import placement
from projector.memory.peaks import fullest
from projector.pipeline.bounds import lower_bound
from projector.settle.columns import settle_many
from projector.settle.workload import settle_checked
from projector.size import Floats
from projector.step.batch import step_lower_bounds
from projector.step.columns import block_sums, stage_figures_of
from projector.step.combined_1f1b import pairs_microbatches
from projector.step.stages import counted_names, splits
from projector.workload.composition import compositions
from projector.workload.workload import Workload


def roomier(cluster: Cluster, factor: float) -> Cluster:
    """Returns ``cluster`` with ``factor`` times the memory that a process can use on a GPU."""
    if factor == 1.0:
        return cluster
    return replace(cluster, gpu=replace(cluster.gpu, usable_memory_bytes=factor * cluster.gpu.usable_memory_bytes))


class Fullest(NamedTuple):
    """Memory of the fullest rank: bytes ``allocated`` (0 for an order that is made for its times), bytes ``required``
    for these (or the least that any order requires), and bytes ``usable``."""

    allocated: float
    required: float
    usable: float

    @property
    def share(self) -> float:
        """Returns the required bytes over the usable ones."""
        return self.required / self.usable


def weights(loads: Sequence[Workload], cluster: Cluster) -> list[float | str]:
    """Returns for each workload the share of the usable memory that weights and their state need on the fullest rank,
    without any activation, or the reason why no layer can be laid out."""
    return [each if isinstance(each, str) else each.share for each in needs(loads, cluster, tensors=False)]


def needs(loads: Sequence[Workload], cluster: Cluster, *, tensors: bool = True) -> list[Fullest | str]:
    """Returns for each workload the memory of its fullest rank, or the reason why there is none. Without ``tensors``:
    of its weights and their state alone."""
    runs, places, refused = settle_many(loads, cluster)
    memory, unlaid = fullest(runs, cluster.gpu, tensors=tensors)
    found = dict(zip(places.tolist(), map(Fullest, *(column.tolist() for column in memory)), strict=True))
    reasons = refused | {int(places[i]): error for i, error in unlaid.items()}
    return [str(reasons[i]) if i in reasons else found[i] for i in range(len(loads))]


def seconds(loads: Sequence[Workload], cluster: Cluster, settings: Settings) -> Floats:
    """Returns ``[loads]``: seconds that a step takes at least, by the prices of its stages in any order, without
    exchanges that may hide; infinite where no model prices it."""
    runs, places, _ = settle_many(loads, cluster)
    stages, _ = stage_figures_of(runs, cluster, efficiency_of(cluster.gpu), settings)
    least = np.full(len(loads), np.inf)
    least[places] = step_lower_bounds(runs, stages)
    return least


Query = tuple[int, Hashable, Hashable, Workload]
"""The number of a pipeline, the option of its layers, the same without how many layers are recomputed, and the workload."""
Blocks = dict[Hashable, dict[Hashable, Floats]]
"""Seconds ``[phase, device or host]`` that each block adds to its stage, by the family."""


class _StageBlocks(NamedTuple):
    """How many of each of ``blocks`` every stage of a pipeline has: ``counts`` ``[stages, blocks]``; and what else its
    bound depends on."""

    placement: tuple[tuple[int, ...], ...]
    split: bool
    pairs: bool
    blocks: tuple[Hashable, ...]
    counts: Floats


class BlockBounds:
    """Bounds steps by the seconds of blocks, each priced once for all pipelines of its family."""

    def __init__(self, cluster: Cluster, known: Blocks) -> None:
        self._cluster = cluster
        self._seconds = known
        self._pipelines: dict[Hashable, _StageBlocks] = {}

    def price(self, queries: Sequence[Query], settings: Settings) -> None:
        """Prices the blocks of every family among ``queries`` of which some have no price yet."""
        new: dict[Hashable, tuple[dict[Hashable, Floats], Workload]] = {}
        for pipe, layer, seen, load in queries:
            with suppress(InputError, Unsupported):
                pipeline = self._pipeline(pipe, layer, load)
                known = self._block_seconds(seen, load, pipeline)
                if not known or any(block not in known for block in pipeline.blocks):
                    new.setdefault((id(known), pipeline.blocks), (known, load))
        wanted = [known for known, _ in new.values()]
        runs, places, _ = settle_many([load for _, load in new.values()], self._cluster)
        for rows, blocks in block_sums(runs, self._cluster, efficiency_of(self._cluster.gpu), settings):
            for row, i in enumerate(places[rows].tolist()):
                wanted[i].update({name: each[..., row] for name, each in blocks.items()})

    def bounds(self, queries: Sequence[Query]) -> list[float | None]:
        """Returns for each query the seconds that a step takes at least; None where no price of its blocks is known."""
        least_seconds: list[float | None] = [None] * len(queries)
        rows_of: dict[int, list[int]] = {}
        for i, (pipe, layer, _, load) in enumerate(queries):
            with suppress(InputError, Unsupported):
                rows_of.setdefault(id(self._pipeline(pipe, layer, load)), []).append(i)
        for rows in rows_of.values():
            pipe, layer, _, load = queries[rows[0]]
            pipeline, seconds, known = self._pipeline(pipe, layer, load), [], []
            for i in rows:
                blocks = self._block_seconds(queries[i][2], queries[i][3], pipeline)
                if all(block in blocks for block in pipeline.blocks):
                    known.append(i)
                    seconds.append([blocks[block] for block in pipeline.blocks])
            if known:
                device, host = np.tensordot(np.array(seconds), pipeline.counts, (1, 1)).transpose(2, 1, 0, 3)
                forward, inputs, weight = np.maximum(device, host)
                steps = np.array([queries[i][3].num_microbatches for i in known])
                least = lower_bound(pipeline.placement, steps, forward, inputs, weight, split=pipeline.split)
                for i, each in zip(known, least.tolist(), strict=True):
                    least_seconds[i] = each
        return least_seconds

    def _block_seconds(self, seen: Hashable, load: Workload, pipeline: _StageBlocks) -> dict[Hashable, Floats]:
        """Returns the priced blocks of the family of ``load``: runs with equal layers on like groups."""
        recipe, stage = load.recipe, load.gpus // load.recipe.pp
        where = load.gpus, stage if stage % self._cluster.gpus_per_node else 0  # stages of whole nodes lie alike
        alone = recipe.pp == 1, load.dp == 1, load.num_microbatches == 1
        grid = recipe.tensor_parallel_algorithm, recipe.tp2, recipe.summa_panels
        sizes = recipe.tp, recipe.cp, recipe.ep, recipe.etp, recipe.micro_batch_size, where, grid
        key = sizes, alone, seen, pipeline.split, pipeline.pairs, bool(recipe.overlap_grad_reduce)
        return self._seconds.setdefault(key, {})

    def _pipeline(self, pipe: int, layer: Hashable, load: Workload) -> _StageBlocks:
        key = load.recipe.pp, pipe, layer
        pipeline = self._pipelines.get(key)
        if pipeline is None:
            run = settle_checked(load, self._cluster, published=False)
            recipe = run.workload.recipe
            _, kinds = compositions(run.workload.model, recipe)
            blocks = {block: 0 for kind in dict.fromkeys(kinds) for block, _ in counted_names(kind)}
            names = {kind: counted_names(kind) for kind in kinds}
            counts = np.array(
                [[sum(n for name, n in names[k] if name == block) for block in blocks] for k in kinds], float
            )
            pipeline = _StageBlocks(placement(run), splits(recipe), pairs_microbatches(recipe), tuple(blocks), counts)
            self._pipelines[key] = pipeline
        return pipeline
