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
from projector.errors import Refusal
from projector.frameworks.columns import Layouts, Runs, laid_out, numbered, parted
from projector.frameworks.scope import PLACING, built_together, told_once
from projector.frameworks.types import Resolved
from projector.hardware.types import Cluster, Efficiency, GroupShape
from projector.kernels.protocol import ComputeOp, Times
from projector.kernels.settings import Settings
from projector.kernels.simulate import Simulated, shared
from projector.operators.types import Collective
from projector.size import Column, Rows, Split, column, part, raw, rows, trace
from projector.step.cycle import Stages, figures
from projector.step.priced import priced_by, pricing
from projector.step.problem import Layers, added, switches_of, travels
from projector.step.slowest import slowest
from projector.step.stages import StageTime, assembled, awaited, counted_names, counted_parts
from projector.step.waits import offloads
from projector.workload.composition import Composition, compositions

Floats = NDArray[np.float64]

_WIDE = 512  # rows of a column: what a layer's operators need stays within some tens of megabytes


def additive(
    runs: Runs, cluster: Cluster, efficiency: Efficiency, settings: Settings
) -> Iterator[tuple[Rows, Mapping[Hashable, Floats]]]:
    """Yields runs and what each of their blocks adds to a stage (:func:`projector.step.problem.added`): ``[phase, device or
    host, runs]`` seconds by its name (:func:`projector.step.stages.counted_names`). Leaves out runs whose weights or
    gradients travel with every micro-batch, and those that no model prices: they are for
    :func:`projector.step.priced.priced`."""
    still = np.concatenate([np.zeros(0, np.intp), *_staying(runs)])
    for own, made in _priced(runs.only(still), cluster, efficiency, settings):
        if isinstance(made, Priced):
            yield (
                still[own],
                {
                    name: np.array([[rows(each, len(own)) for each in phase] for phase in added(time)])
                    for name, time in made.times.items()
                },
            )


def _staying(runs: Runs) -> Iterator[Rows]:
    """Yields the runs whose weights and gradients stay where they are between micro-batches."""
    for _, those in runs.groups():
        for own, away in trace(lambda own, those=those: travels(runs.column(those[own])), len(those)):  # type: ignore[misc]
            if not away:
                yield those[own]


def staged(
    runs: Runs, cluster: Cluster, efficiency: Efficiency, settings: Settings
) -> tuple[dict[int, Floats], dict[int, Refusal]]:
    """Returns ``[8, stages]`` of every run: figures of its virtual stages (:class:`projector.step.cycle.Stages`); and why
    some have none."""
    found, refused = dict[int, Floats](), dict[int, Refusal]()
    for own, made in _priced(runs, cluster, efficiency, settings):
        if not isinstance(made, Priced):
            refused |= dict.fromkeys(own.tolist(), made)
            continue
        groups = [(_stages(runs.ones[of]), those) for of, those in _by_group(runs, own)]
        values = made.layouts.folded(groups, made.shape, made.stage, len(Stages._fields))
        for chunks, those in groups:
            stages = np.stack([values[kind][:, those] for kind in chunks], axis=-1)
            found |= zip(own[those].tolist(), np.moveaxis(stages, 1, 0), strict=True)
    return found, refused


def _by_group(runs: Runs, those: Rows) -> Iterator[tuple[int, Rows]]:
    """Yields the group of some of ``those``, and which of them these are."""
    for own in parted(np.arange(len(those)), runs.group[those]):
        yield int(runs.group[those[own[0]]]), own


def _stages(run: Resolved) -> tuple[Composition, ...]:
    return compositions(run.workload.model, run.workload.recipe)[1]


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
    runs: Runs, cluster: Cluster, efficiency: Efficiency, settings: Settings
) -> Iterator[tuple[Rows, Priced | Refusal]]:
    """Of rows that take the same branches, or why nothing prices them."""
    prices, device = Prices(runs, cluster, efficiency), settings.device(cluster.gpu, efficiency)

    def build(layouts: Layouts, those: Rows) -> Priced:
        run = layouts.run()
        kinds = dict.fromkeys(kind for of, _ in _by_group(runs, those) for kind in _stages(runs.ones[of]))
        model = Kernels(shared(*device, run.execution), len(those))
        layers = Layers(run, kinds, model, prices.groups(those).seconds, slowest(efficiency, layouts.one.workload.gpus))
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


class Prices:
    """Prices of the collectives of ``runs``: one for all whose groups lie alike."""

    def __init__(self, runs: Runs, cluster: Cluster, efficiency: Efficiency) -> None:
        alike = dict[Hashable, int]()
        kinds = np.array([alike.setdefault(priced_by(one), len(alike)) for one in runs.ones], np.intp)
        placed = np.concatenate([runs.cells[PLACING], kinds[runs.group][None]])
        _, first, self._of = np.unique(placed, axis=1, return_index=True, return_inverse=True)
        self._each = [pricing(runs[int(row)], cluster, efficiency) for row in first]

    def groups(self, those: Rows) -> Groups:
        """Returns the process groups of ``those``."""
        return Groups(self._each, self._of.reshape(-1)[those])


class Groups:
    """The process groups of each row, and what their collectives cost. ``of`` ``[rows]``: which of ``prices`` it has."""

    def __init__(self, prices: Sequence[Pricing], of: Rows) -> None:
        self._prices, self._of = prices, of
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
        found = np.empty(len(self._of))
        for those, price in self._apart[op.group]:
            try:
                found[those] = raw(price.seconds(part(op, those)))
            except Split as split:
                labels = np.full(len(found), -1)
                labels[those] = np.unique(split.labels, return_inverse=True)[1]
                raise Split(labels) from None
        return column(found)  # type: ignore[no-any-return]

    def _lying(self, group: str) -> list[tuple[Rows, Pricing]]:
        shapes: dict[GroupShape | None, int] = {}
        those = np.unique(self._of)
        which = {of: shapes.setdefault(self._prices[of].groups.get(group), len(shapes)) for of in those.tolist()}
        label = np.array([which[of] for of in self._of.tolist()])
        return [(rows, self._prices[self._of[rows[0]]]) for rows in parted(np.arange(len(label)), label)]
