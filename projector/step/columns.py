"""Blocks of many runs with their times: those that differ in sizes alone are built and priced in one go.

Sizes of one run are numbers, of several columns of numbers (:mod:`projector.size`); layers, kernels and the clock of a phase
are the same code for both. What a collective costs depends on how its group lies on the nodes: rows are priced by that.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from projector.collectives.model import Pricing
from projector.dataclass import dataclass
from projector.errors import InputError, Unsupported
from projector.frameworks.columns import Layouts, laid_out, numbered
from projector.frameworks.scope import built_together, told_once
from projector.frameworks.types import Resolved
from projector.hardware.types import Cluster, Efficiency, GroupShape
from projector.kernels.protocol import ComputeOp, Times
from projector.kernels.settings import Settings
from projector.kernels.simulate import Simulated, shared
from projector.operators.types import Collective
from projector.size import Column, Rows, Split, column, part, raw, rows
from projector.step.cycle import Stages, figures
from projector.step.priced import pricing
from projector.step.problem import Layers, added, switches_of, travels
from projector.step.slowest import slowest
from projector.step.stages import StageTime, assembled, awaited, counted_names, counted_parts
from projector.step.waits import offloads
from projector.workload.composition import Composition, compositions

Floats = NDArray[np.float64]

_WIDE = 512  # rows of a column: what a layer's operators need stays within some tens of megabytes


def additive(
    runs: Sequence[Resolved], cluster: Cluster, efficiency: Efficiency, settings: Settings
) -> list[Mapping[Hashable, Floats]]:
    """Returns what each block of each run adds to a stage (:func:`projector.step.problem.added`): ``[phase, device or
    host]`` seconds by its name (:func:`projector.step.stages.counted_names`). Nothing of runs whose weights or
    gradients travel with every micro-batch, nor of those that no model prices: they are for
    :func:`projector.step.priced.priced`."""
    found: list[Mapping[Hashable, Floats]] = [{} for _ in runs]
    still = [i for i, run in enumerate(runs) if not travels(run)]
    for own, made in _priced([runs[i] for i in still], cluster, efficiency, settings):
        if isinstance(made, Priced):
            blocks = {
                name: np.array([[rows(each, len(own)) for each in phase] for phase in added(time)])
                for name, time in made.times.items()
            }
            for place, row in enumerate(own.tolist()):
                found[still[row]] = {name: each[..., place] for name, each in blocks.items()}
    return found


def staged(
    runs: Sequence[Resolved], cluster: Cluster, efficiency: Efficiency, settings: Settings
) -> list[Floats | InputError | Unsupported]:
    """``[8, stages]`` of every run: figures of its virtual stages (:class:`projector.step.cycle.Stages`), or why there are
    none."""
    found: dict[int, Floats | InputError | Unsupported] = {}
    for own, made in _priced(runs, cluster, efficiency, settings):
        if not isinstance(made, Priced):
            found |= dict.fromkeys(own.tolist(), made)
            continue
        kinds = [compositions(runs[i].workload.model, runs[i].workload.recipe)[1] for i in own]
        asked: dict[Composition, list[int]] = {}
        for row, chunks in enumerate(kinds):
            for kind in dict.fromkeys(chunks):
                asked.setdefault(kind, []).append(row)
        values = made.layouts.folded(asked.items(), made.shape, made.stage, len(Stages._fields))
        for row, (i, chunks) in enumerate(zip(own.tolist(), kinds, strict=True)):
            found[i] = np.stack([values[kind][:, row] for kind in chunks], axis=-1)
    return [found[i] for i in range(len(runs))]


@dataclass(frozen=True, slots=True)
class Priced:
    """Times of the blocks of runs with the sizes of ``layouts``, by their name."""

    layouts: Layouts
    times: Mapping[Hashable, StageTime]

    def shape(self, kind: Composition) -> Hashable:
        """Equal for stages that are folded together: of activations on the host it matters which layer stands where."""
        return kind if offloads(self.layouts.one) else tuple(name for name, _ in counted_names(kind))

    def stage(self, run: Resolved, alike: Sequence[Composition], place: Rows, those: Rows) -> Sequence[float]:
        blocks = numbered([counted_names(kind) for kind in alike], place)
        times = {name: part(self.times[name], those) for name, _ in blocks}
        made = assembled(run, [(times[name], number) for name, number in blocks], times)
        if offloads(run):
            layers = zip(blocks, counted_parts(run, alike[0]), strict=True)
            made = awaited(
                run, made, [(one, times[name]) for (name, _), (one, number) in layers for _ in range(number)]
            )
        return figures(made)


def _priced(
    runs: Sequence[Resolved], cluster: Cluster, efficiency: Efficiency, settings: Settings
) -> Iterator[tuple[Rows, Priced | InputError | Unsupported]]:
    """Of rows that take the same branches, or why nothing prices them."""
    prices, device = [pricing(run, cluster, efficiency) for run in runs], settings.device(cluster.gpu, efficiency)
    stages = [compositions(run.workload.model, run.workload.recipe)[1] for run in runs]

    def build(layouts: Layouts, those: Rows) -> Priced:
        run, groups = layouts.run(), Groups([prices[i] for i in those])
        kinds = dict.fromkeys(kind for i in those for kind in stages[i])
        model = Kernels(shared(*device, run.execution), len(those))
        layers = Layers(run, kinds, model, groups.seconds, slowest(efficiency, layouts.one.workload.gpus))
        return Priced(layouts, {name: time.lean for name, time in layers.times.items()})

    return laid_out(runs, _alike, build, _WIDE)


def _alike(run: Resolved) -> Hashable:
    """Equal for runs whose blocks are priced in one go."""
    return built_together(run), switches_of(run), run.workload.gpus, told_once(run) if travels(run) else None


class Kernels:
    """The kernel model of operators whose sizes are columns with ``number`` rows."""

    name = "simulate"

    def __init__(self, model: Simulated, number: int) -> None:
        self.model, self.number = model, number

    def times(self, ops: Sequence[ComputeOp]) -> Times:
        found = np.empty(len(ops), object)
        found[:] = [Column(each) for each in self.model.columns(ops, self.number)]
        return Times(found, np.zeros(len(ops), np.bool_))


class Groups:
    """The process groups of each row, and what their collectives cost."""

    def __init__(self, prices: Sequence[Pricing]) -> None:
        self._prices = prices
        self._apart: dict[str, list[tuple[Rows, Pricing]]] = {}
        self._seconds: dict[Collective, float] = {}

    def seconds(self, op: Collective) -> float:
        """Of every row, by how the group of ``op`` lies there."""
        if op not in self._seconds:
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
