"""Bounds of all pipelines of one family at once: what a block adds to its stage is the same on every pipeline, so that a
few priced stages bound all others by counting.

A family: one choice of sizes and of what layers see, with schedules that split the backward alike. The device's seconds of
a stage are the sum over its blocks, as are the host's (:func:`projector.step.timing.chain`): a stage takes the larger of
both at least. How they take turns between points of synchronisation, and what is waited for, is left out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass
from projector.errors import InputError, Unsupported
from projector.hardware.efficiency import of as efficiency_of
from projector.hardware.types import Cluster
from projector.kernels.settings import Settings
from projector.memory.holding import placement
from projector.pipeline.bounds import lower_bound
from projector.settle.workload import settled
from projector.step.columns import additive
from projector.step.neighbours import pairs_up
from projector.step.priced import Priced
from projector.step.stages import counted_names, splits
from projector.workload.composition import Composition, compositions
from projector.workload.workload import Workload

Floats = NDArray[np.float64]


Asked = tuple[int, int, Hashable, Hashable, Workload]
"""Numbers of a shape and a pipeline, what layers see, the same without how many are recomputed, and the run itself."""


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """``counts`` ``[stages, blocks]``: how many of the ``blocks`` each stage has."""

    placement: tuple[tuple[int, ...], ...]
    split: bool
    pairs: bool
    blocks: tuple[Hashable, ...]
    counts: Floats


class Families:
    """What is known of the blocks of each family, and of which each pipeline is made."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seconds: dict[Hashable, dict[Hashable, Floats]] = {}
        self._pipelines: dict[Hashable, _Pipeline] = {}

    def ask(self, those: Sequence[Asked], settings: Settings) -> None:
        """Prices the blocks of every family among ``those`` (as :meth:`learn` takes them) of which none is known."""
        new: dict[int, tuple[dict[Hashable, Floats], Workload]] = {}
        for shape, pipe, layer, seen, load in those:
            with suppress(InputError, Unsupported):
                known = self._known(shape, seen, load, self._pipeline(pipe, layer, load))
                if not known:
                    new[id(known)] = known, load
        runs = [settled(load, self._cluster, published=False) for _, load in new.values()]
        each = additive(runs, self._cluster, efficiency_of(self._cluster.gpu), settings)
        for (known, _), found in zip(new.values(), each, strict=True):
            known.update(found)

    def learn(self, shape: int, pipe: int, layer: Hashable, seen: Hashable, load: Workload, made: Priced) -> None:
        """Takes down the blocks of the priced stages of ``load``. ``layer``: what layers see; ``seen``: the
        same without the number of layers that are recomputed."""
        known = self._known(shape, seen, load, self._pipeline(pipe, layer, load))
        run = made.resolved.workload
        _, kinds = compositions(run.model, run.recipe)
        for kind, stage in zip(kinds, made.stages, strict=True):
            at = 0
            for block, number in counted_names(kind):
                if block not in known:
                    known[block] = np.array(made.layers.additive(stage.parts[at]))
                at += number

    def bounds(self, those: Sequence[Asked]) -> list[float | None]:
        """Seconds of a step at least; None where its blocks are not known, or nothing lays it out."""
        found: list[float | None] = [None] * len(those)
        alike: dict[int, list[int]] = {}
        for i, (_, pipe, layer, _, load) in enumerate(those):
            with suppress(InputError, Unsupported):
                alike.setdefault(id(self._pipeline(pipe, layer, load)), []).append(i)
        for rows in alike.values():
            _, pipe, layer, _, load = those[rows[0]]
            made, seconds, known = self._pipeline(pipe, layer, load), [], []
            for i in rows:
                blocks = self._known(those[i][0], those[i][3], those[i][4], made)
                if all(block in blocks for block in made.blocks):
                    known.append(i)
                    seconds.append([blocks[block] for block in made.blocks])
            if known:
                device, host = np.tensordot(np.array(seconds), made.counts, (1, 1)).transpose(2, 1, 0, 3)
                forward, inputs, weight = np.maximum(device, host)
                steps = np.array([those[i][4].num_microbatches for i in known])
                least = lower_bound(made.placement, steps, forward, inputs, weight, split=made.split)
                for i, each in zip(known, least.tolist(), strict=True):
                    found[i] = each
        return found

    def _known(self, shape: int, seen: Hashable, load: Workload, made: _Pipeline) -> dict[Hashable, Floats]:
        key = shape, seen, made.split, made.pairs, bool(load.recipe.overlap_grad_reduce)
        return self._seconds.setdefault(key, {})

    def _pipeline(self, pipe: int, layer: Hashable, load: Workload) -> _Pipeline:
        key = load.recipe.pp, pipe, layer
        found = self._pipelines.get(key)
        if found is None:
            run = settled(load, self._cluster, published=False)
            recipe = run.workload.recipe
            _, kinds = compositions(run.workload.model, recipe)
            blocks = {block: 0 for kind in dict.fromkeys(kinds) for block, _ in counted_names(kind)}
            counts = np.array([[dict(_summed(kind)).get(block, 0) for block in blocks] for kind in kinds], float)
            found = _Pipeline(placement(run), splits(recipe), pairs_up(recipe), tuple(blocks), counts)
            self._pipelines[key] = found
        return found


def _summed(kind: Composition) -> dict[Hashable, int]:
    found: dict[Hashable, int] = {}
    for block, number in counted_names(kind):
        found[block] = found.get(block, 0) + number
    return found
