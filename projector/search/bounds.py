"""What configurations need of memory, and seconds that none of them beats: from weights alone, from the order of a
schedule, from the prices of its stages; and of all pipelines of one family at once: what a block adds to its stage is the
same on every pipeline, so that a few priced stages bound all others by counting.

A family: one choice of sizes and of what layers see, with schedules that split the backward alike. The device's seconds of
a stage are the sum over its blocks, as are the host's (:func:`projector.step.timing.chain`): a stage takes the larger of
both at least. How they take turns between points of synchronisation, and what is waited for, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from projector.errors import InputError, Unsupported
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster
from projector.kernels.settings import Settings
from projector.memory.holding import placement
from projector.memory.peaks import fullest, lightest
from projector.pipeline.bounds import lower_bound
from projector.settle.columns import settled_each
from projector.settle.workload import settled
from projector.step.batch import shortest
from projector.step.columns import additive, staged
from projector.step.neighbours import pairs_up
from projector.step.stages import after_exchange, counted_names, splits
from projector.workload.composition import compositions
from projector.workload.workload import Workload

Floats = NDArray[np.float64]


def roomier(cluster: Cluster, factor: float) -> Cluster:
    """``cluster`` with so many times the memory that a process can get."""
    if factor == 1.0:
        return cluster
    return replace(cluster, gpu=replace(cluster.gpu, usable_memory_bytes=factor * cluster.gpu.usable_memory_bytes))


class Fullest(NamedTuple):
    """Bytes ``allocated`` on the fullest rank (0 of an order that is made for its times), what these need (or the least of
    any order does), and what is usable."""

    allocated: float
    required: float
    usable: float

    @property
    def share(self) -> float:
        return self.required / self.usable


def weights(loads: Sequence[Workload], cluster: Cluster) -> list[float | str]:
    """Share of the usable memory that weights and their state need on the fullest rank, whatever passes through them, or
    why no layer can be laid out."""
    return [each if isinstance(each, str) else each.share for each in _needs(loads, cluster, lightest)]


def needs(loads: Sequence[Workload], cluster: Cluster) -> list[Fullest | str]:
    """Returns what each needs, or why there is nothing."""
    return _needs(loads, cluster, fullest)


def _needs(loads: Sequence[Workload], cluster: Cluster, of: Callable[..., Any]) -> list[Fullest | str]:
    runs, places, refused = settled_each(loads, cluster)
    found, unlaid = of(runs, cluster.gpu)
    each = dict(zip(places.tolist(), map(Fullest, *(column.tolist() for column in found)), strict=True))
    why = refused | {int(places[i]): error for i, error in unlaid.items()}
    return [str(why[i]) if i in why else each[i] for i in range(len(loads))]


def seconds(loads: Sequence[Workload], cluster: Cluster, settings: Settings) -> Floats:
    """``[loads]``: seconds that a step takes at least, by the prices of its stages in whatever order, exchanges that
    may hide left out; infinite where nothing prices it."""
    runs, places, _ = settled_each(loads, cluster)
    made, _ = staged(runs, cluster, efficiency_of(cluster.gpu), settings)
    found = np.full(len(loads), np.inf)
    found[places] = shortest(runs, made)
    return found


Query = tuple[int, Hashable, Hashable, Workload]
"""The number of a pipeline, what layers see, the same without how many are recomputed, and the run itself."""
Blocks = dict[Hashable, dict[Hashable, Floats]]
"""Seconds that blocks add to their stages, by what they depend on beside the pipeline."""


class _StageBlocks(NamedTuple):
    """``counts`` ``[stages, blocks]``: how many of the ``blocks`` each stage of a pipeline has."""

    placement: tuple[tuple[int, ...], ...]
    split: bool
    pairs: bool
    exchanges: bool
    blocks: tuple[Hashable, ...]
    counts: Floats


class BlockBounds:
    """What is known of the blocks of each family, and of which each pipeline is made."""

    def __init__(self, cluster: Cluster, known: Blocks) -> None:
        self._cluster = cluster
        self._seconds = known
        self._pipelines: dict[Hashable, _StageBlocks] = {}

    def price(self, queries: Sequence[Query], settings: Settings) -> None:
        """Prices the blocks of every family among ``queries`` of which some are not known."""
        new: dict[Hashable, tuple[dict[Hashable, Floats], Workload]] = {}
        for pipe, layer, seen, load in queries:
            with suppress(InputError, Unsupported):
                made = self._pipeline(pipe, layer, load)
                known = self._block_seconds(seen, load, made)
                if not known or any(block not in known for block in made.blocks):
                    new.setdefault((id(known), made.blocks), (known, load))
        wanted = [known for known, _ in new.values()]
        runs, places, _ = settled_each([load for _, load in new.values()], self._cluster)
        for rows, blocks in additive(runs, self._cluster, efficiency_of(self._cluster.gpu), settings):
            for row, i in enumerate(places[rows].tolist()):
                wanted[i].update({name: each[..., row] for name, each in blocks.items()})

    def bounds(self, queries: Sequence[Query]) -> list[float | None]:
        """Seconds of a step at least; None where its blocks are not known, or nothing lays it out."""
        found: list[float | None] = [None] * len(queries)
        alike: dict[int, list[int]] = {}
        for i, (pipe, layer, _, load) in enumerate(queries):
            with suppress(InputError, Unsupported):
                alike.setdefault(id(self._pipeline(pipe, layer, load)), []).append(i)
        for rows in alike.values():
            pipe, layer, _, load = queries[rows[0]]
            made, seconds, known = self._pipeline(pipe, layer, load), [], []
            for i in rows:
                blocks = self._block_seconds(queries[i][2], queries[i][3], made)
                if all(block in blocks for block in made.blocks):
                    known.append(i)
                    seconds.append([blocks[block] for block in made.blocks])
            if known:
                device, host = np.tensordot(np.array(seconds), made.counts, (1, 1)).transpose(2, 1, 0, 3)
                forward, inputs, weight = np.maximum(device, host)
                steps = np.array([queries[i][3].num_microbatches for i in known])
                least = lower_bound(made.placement, steps, forward, inputs, weight, split=made.split)
                for i, each in zip(known, least.tolist(), strict=True):
                    found[i] = each
        return found

    def _block_seconds(self, seen: Hashable, load: Workload, made: _StageBlocks) -> dict[Hashable, Floats]:
        """Of runs whose layers have the same problem: what they see, and how its groups lie."""
        recipe, stage = load.recipe, load.gpus // load.recipe.pp
        where = load.gpus, stage if stage % self._cluster.gpus_per_node else 0  # whole nodes lie alike
        alone = recipe.pp == 1, load.dp == 1, load.num_microbatches == 1
        grid = recipe.tensor_parallel_algorithm, recipe.tp2, recipe.summa_panels
        sizes = recipe.tp, recipe.cp, recipe.ep, recipe.etp, recipe.micro_batch_size, where, grid
        key = sizes, alone, seen, made.split, made.pairs, made.exchanges, bool(recipe.overlap_grad_reduce)
        return self._seconds.setdefault(key, {})

    def _pipeline(self, pipe: int, layer: Hashable, load: Workload) -> _StageBlocks:
        key = load.recipe.pp, pipe, layer
        found = self._pipelines.get(key)
        if found is None:
            run = settled(load, self._cluster, published=False)
            recipe = run.workload.recipe
            _, kinds = compositions(run.workload.model, recipe)
            blocks = {block: 0 for kind in dict.fromkeys(kinds) for block, _ in counted_names(kind)}
            each = {kind: counted_names(kind) for kind in kinds}
            counts = np.array(
                [[sum(n for name, n in each[k] if name == block) for block in blocks] for k in kinds], float
            )
            found = _StageBlocks(
                placement(run), splits(recipe), pairs_up(recipe), after_exchange(run), tuple(blocks), counts
            )
            self._pipelines[key] = found
        return found
