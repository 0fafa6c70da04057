"""Blocks of many runs with their times: those that differ in sizes alone are built and priced in one go.

Sizes of one run are numbers, of several columns of numbers (:mod:`projector.size`); layers, kernels and the clock of a phase
are the same code for both. What a collective costs depends on how its group lies on the nodes: rows are priced by that.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from projector.collectives.model import Pricing
from projector.errors import InputError, Unsupported
from projector.frameworks.scope import as_layers_see, but_for_sizes, in_columns
from projector.frameworks.types import Resolved
from projector.hardware.types import Cluster, Efficiency, GroupShape
from projector.kernels.protocol import ComputeOp, Times
from projector.kernels.settings import Settings
from projector.kernels.simulate import Simulated, shared
from projector.memo import lasting, passing
from projector.operators.types import Collective
from projector.size import Column, Rows, Split, column, part, raw, rows, trace
from projector.step.priced import pricing
from projector.step.problem import Layers, switches_of, travels
from projector.step.slowest import slowest
from projector.step.stages import counted_names, counted_parts
from projector.workload.composition import compositions

Floats = NDArray[np.float64]

_WIDE = 512  # rows of a column: what a layer's operators need stays within some tens of megabytes


def additive(
    runs: Sequence[Resolved], cluster: Cluster, efficiency: Efficiency, settings: Settings
) -> list[Mapping[Hashable, Floats]]:
    """What each block of each run adds to a stage (:meth:`projector.step.problem.Layers.additive`): ``[phase, device or
    host]`` seconds by its name (:func:`projector.step.stages.counted_names`). Nothing of runs whose weights or gradients
    travel with every micro-batch, nor of those that no model prices: they are for :func:`projector.step.priced.priced`."""
    found: list[Mapping[Hashable, Floats]] = [{} for _ in runs]
    alike: dict[Hashable, list[int]] = {}
    for i, run in enumerate(runs):
        if not travels(run):
            key = but_for_sizes(as_layers_see(run)), switches_of(run), run.workload.gpus == 1
            alike.setdefault(key, []).append(i)
    for those in alike.values():
        for first in range(0, len(those), _WIDE):
            group = those[first : first + _WIDE]
            for own, blocks in _traced([runs[i] for i in group], cluster, efficiency, settings):
                for place, row in enumerate(own.tolist()):
                    found[group[row]] = {name: each[..., place] for name, each in blocks.items()}
    return found


def _traced(
    runs: Sequence[Resolved], cluster: Cluster, efficiency: Efficiency, settings: Settings
) -> Iterator[tuple[Rows, Mapping[Hashable, Floats]]]:
    """``[phase, device or host, rows]`` by block, of rows that take the same branches."""
    prices = [pricing(run, cluster, efficiency) for run in runs]
    kinds = dict.fromkeys(kind for run in runs for kind in compositions(run.workload.model, run.workload.recipe)[1])
    device, sustained = settings.device(cluster.gpu, efficiency)

    def build(those: Rows) -> Mapping[Hashable, Floats]:
        number, mine = len(those), [runs[i] for i in those]
        with passing():
            run = in_columns(mine)
            groups = _Groups([prices[i] for i in those])
            model = _Kernels(shared(device, sustained, run.execution), number)
            slow = slowest(efficiency, mine[0].workload.gpus)
            layers = Layers(run, model, groups.seconds, slow)
            named = {
                name: block
                for kind in kinds
                for (name, _), (block, _) in zip(counted_names(kind), counted_parts(run, kind), strict=True)
            }
            layers.blocks(run, list(named.values()))
            return {
                name: np.array([[rows(each, number) for each in phase] for phase in layers.additive(block)])
                for name, block in named.items()
            }

    def priced(those: Rows) -> Mapping[Hashable, Floats]:
        try:
            return build(those)
        except (InputError, Unsupported):
            return {}

    return trace(priced, len(runs))


class _Kernels:
    """The kernel model of operators whose sizes are columns with ``number`` rows."""

    name = "simulate"

    def __init__(self, model: Simulated, number: int) -> None:
        self.model, self.number = model, number

    def times(self, ops: Sequence[ComputeOp]) -> Times:
        found = np.empty(len(ops), object)
        found[:] = [Column(each) for each in self.model.columns(ops, self.number)]
        return Times(found, np.zeros(len(ops), np.bool_))


class _Groups:
    """The process groups of each row, and what their collectives cost."""

    def __init__(self, prices: Sequence[Pricing]) -> None:
        self._prices = prices
        self._apart: dict[str, list[tuple[Rows, Pricing]]] = {}
        self._seconds: dict[Collective, float] = {}

    def seconds(self, op: Collective) -> float:
        """Of every row, by how the group of ``op`` lies there."""
        if op not in self._seconds:
            with lasting():
                self._seconds[op] = self._priced(op)
        return self._seconds[op]

    def _priced(self, op: Collective) -> float:
        if op.group not in self._apart:
            self._apart[op.group] = self._lying(op.group)
        found = np.empty(len(self._prices))
        for those, price in self._apart[op.group]:
            try:
                found[those] = raw(price.seconds(part(op, those)))
            except Split as split:
                labels = np.full(len(found), -1)
                labels[those] = np.unique(split.labels, return_inverse=True)[1]
                raise Split(labels) from None
        return column(found)  # type: ignore[no-any-return]

    def _lying(self, group: str) -> list[tuple[Rows, Pricing]]:
        shapes: dict[GroupShape | None, list[int]] = {}
        for row, price in enumerate(self._prices):
            shapes.setdefault(price.groups.get(group), []).append(row)
        return [(np.array(those), self._prices[those[0]]) for those in shapes.values()]
