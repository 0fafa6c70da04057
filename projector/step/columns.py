"""Times of the blocks of many runs: those that differ in sizes alone are built and priced in one go.

A size of one run is a number, of several runs a column of numbers (:mod:`projector.size`); layers, kernels and the clock of
a phase are the same code for both. A collective's price depends on how its group lies on the nodes: rows are priced by that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from projector.collectives.model import Pricing
from projector.dataclass import dataclass
from projector.errors import Refusal
from projector.frameworks.columns import Layouts, Runs, built_in_groups, counted_columns, split_by_label
from projector.frameworks.scope import (
    PLACING,
    STAGES,
    modules_key,
    once_per_step_key,
    recompute_key,
    recomputed_as,
    without_recompute,
)
from projector.frameworks.types import Resolved
from projector.hardware.types import Cluster, Efficiency, GroupShape
from projector.kernels.protocol import ComputeOp, Times
from projector.kernels.settings import Settings
from projector.kernels.simulate import Simulated, shared
from projector.operators.types import Collective
from projector.size import Column, Floats, Rows, Split, column, part, raw, rows, trace
from projector.step.block_times import BlockTimes, added, block_switches, blocks_of, clock_of, moves_every_microbatch
from projector.step.cycle import Stages, stage_row
from projector.step.host_waits import activations_on_host
from projector.step.priced import priced_by, pricing
from projector.step.slowest_chip import slowest
from projector.step.stages import (
    StageBlock,
    StageTime,
    counted_names,
    named,
    stage_from_blocks,
    synchronises_after_exchange,
)
from projector.workload.composition import Composition, compositions

_WIDE = 512  # rows of a column: the operators of a layer stay within some tens of megabytes


def block_sums(
    runs: Runs, cluster: Cluster, efficiency: Efficiency, settings: Settings
) -> Iterator[tuple[Rows, Mapping[Hashable, Floats]]]:
    """Yields the rows of runs and what each of their blocks adds to a stage (:func:`projector.step.block_times.added`):
    ``[phase, device or host, runs]`` seconds by block name (:func:`projector.step.stages.counted_names`). Leaves out
    runs whose weights or gradients travel with every micro-batch, and those that no model prices: they are for
    :func:`projector.step.priced.priced`."""
    stationary = np.concatenate([np.zeros(0, np.intp), *_without_travel(runs)])
    for rows_priced, blocks in _priced_branches(runs.only(stationary), cluster, efficiency, settings):
        if isinstance(blocks, PricedBlocks):
            yield (
                stationary[rows_priced],
                {
                    name: np.array([[rows(seconds, blocks.number) for seconds in phase] for phase in added(time)])[
                        ..., blocks.place
                    ]
                    for name, time in blocks.times.items()
                },
            )


def _without_travel(runs: Runs) -> Iterator[Rows]:
    """Yields the runs whose weights and gradients stay where they are between micro-batches."""
    for _, those in runs.groups():
        moving = trace(lambda own, those=those: moves_every_microbatch(runs.column(those[own])), len(those))  # type: ignore[misc]
        for own, travelling in moving:
            if not travelling:
                yield those[own]


def stage_figures_of(
    runs: Runs, cluster: Cluster, efficiency: Efficiency, settings: Settings
) -> tuple[dict[int, Floats], dict[int, Refusal]]:
    """Returns, by row, the ``[8, stages]`` figures of the virtual stages of every run
    (:class:`projector.step.cycle.Stages`), and why some runs have none."""
    figures_of, refused = dict[int, Floats](), dict[int, Refusal]()
    for priced_rows, blocks in _priced_branches(runs, cluster, efficiency, settings):
        if not isinstance(blocks, PricedBlocks):
            refused |= dict.fromkeys(priced_rows.tolist(), blocks)
            continue
        groups = [(_stages(runs.ones[group]), members) for group, members in _groups_of(runs, priced_rows)]
        asked = [(chunks, np.unique(blocks.place[members])) for chunks, members in groups]
        values = blocks.layouts.folded(asked, blocks.shape, blocks.stage, len(Stages._fields))
        for chunks, members in groups:
            stages = np.stack([values[kind][:, blocks.place[members]] for kind in chunks], axis=-1)
            figures_of |= zip(priced_rows[members].tolist(), np.moveaxis(stages, 1, 0), strict=True)
    return figures_of, refused


def _groups_of(runs: Runs, those: Rows) -> Iterator[tuple[int, Rows]]:
    """Yields the number of each group among the runs ``those``, and the places of its runs in ``those``."""
    for places in split_by_label(np.arange(len(those)), runs.group[those]):
        yield int(runs.group[those[places[0]]]), places


def _stages(run: Resolved) -> tuple[Composition, ...]:
    return compositions(run.workload.model, run.workload.recipe)[1]


@dataclass(frozen=True, slots=True)
class PricedBlocks:
    """The blocks, and their times, by name, of runs with the sizes of ``layouts``. ``place`` ``[runs]``: which of these
    sizes each run has."""

    layouts: Layouts
    place: Rows
    parts: Mapping[Hashable, StageBlock]
    times: Mapping[Hashable, StageTime]

    @property
    def number(self) -> int:
        """Returns how many different sizes there are."""
        return int(self.layouts.cells.shape[1])

    def shape(self, kind: Composition) -> Hashable:
        """Returns a key of stages that are summed together; with activations on the host the order of layers matters."""
        return kind if activations_on_host(self.layouts.one) else tuple(name for name, _ in counted_names(kind))

    def stage(self, run: Resolved, alike: Sequence[Composition], place: Rows, those: Rows) -> Sequence[float]:
        """Returns the figures of a virtual stage: the sum over its blocks, each as often as it stands there."""
        blocks = counted_columns([counted_names(kind) for kind in alike], place)
        sized = (
            named if activations_on_host(run) else lambda _, name: self.parts[name]
        )  # else only their names are read
        return stage_row(stage_from_blocks(run, [(sized(run, n), part(self.times[n], those), c) for n, c in blocks]))


def _priced_branches(
    runs: Runs, cluster: Cluster, efficiency: Efficiency, settings: Settings
) -> Iterator[tuple[Rows, PricedBlocks | Refusal]]:
    """Yields rows that take the same branches and recompute alike with their priced blocks, or why nothing prices them.
    Runs that differ in recompute alone share the modules of their layers, and what kernels take."""
    prices, device = Prices(runs, cluster, efficiency), settings.device(cluster.gpu, efficiency)
    waits = np.array([synchronises_after_exchange(one) for one in runs.ones], np.bool_)  # a stage, no block of it

    def build(layouts: Layouts, those: Rows) -> list[tuple[Rows, PricedBlocks]]:
        cells, first, place = np.unique(layouts.cells, axis=1, return_index=True, return_inverse=True)
        bare, place = without_recompute(Layouts(layouts.one, cells).run()), place.reshape(-1)
        of_recompute: dict[Hashable, list[Rows]] = {}
        for group, members in _groups_of(runs, those):
            of_recompute.setdefault(recompute_key(runs.ones[group]), []).append(members)
        alike = [np.concatenate(parts) for parts in of_recompute.values()]
        ones = [runs.ones[runs.group[those[members[0]]]] for members in alike]
        own_runs = [recomputed_as(bare, one) for one in ones]
        try:
            parts = [blocks_of(run, _kinds(runs, those[own])) for run, own in zip(own_runs, alike, strict=True)]
            blocks = (block for named in parts for block in named.values())
            times = partial(column_times, shared(*device, bare.execution), cells.shape[1])
            clock = clock_of(
                blocks, bare.execution, times, prices.seconds(those[first]), slowest(efficiency, bare.workload.gpus)
            )
            priced = [BlockTimes(run, named, clock) for run, named in zip(own_runs, parts, strict=True)]
        except Split as split:
            raise Split(split.labels[place]) from None
        found = []
        for members, each in zip(alike, priced, strict=True):
            times_of = {name: time.lean for name, time in each.times.items()}
            for alike_rows in split_by_label(members, waits[runs.group[those[members]]]):
                own = those[alike_rows]
                staged = runs[int(own[np.argmax(runs.cells[STAGES, own])])]
                found.append(
                    (alike_rows, PricedBlocks(Layouts(staged, cells), place[alike_rows], each.parts, times_of))
                )
        return found

    for those, found in built_in_groups(runs, _pricing_key, build, _WIDE):
        if isinstance(found, list):
            yield from ((those[members], blocks) for members, blocks in found)
        else:
            yield those, found


def _kinds(runs: Runs, those: Rows) -> dict[Composition, None]:
    """Returns the kinds of virtual stages of the runs ``those``."""
    return dict.fromkeys(kind for group, _ in _groups_of(runs, those) for kind in _stages(runs.ones[group]))


def _pricing_key(run: Resolved) -> Hashable:
    """Returns a key that runs share whose blocks are priced in one go."""
    return (
        modules_key(run),
        block_switches(run),
        run.workload.gpus,
        once_per_step_key(run) if moves_every_microbatch(run) else None,
    )


def column_times(model: Simulated, number: int, ops: Sequence[ComputeOp]) -> Times:
    """Returns the times of operators whose sizes are columns with ``number`` rows."""
    seconds = np.empty(len(ops), object)
    seconds[:] = [Column(times_of_op) for times_of_op in model.columns(ops, number)]
    return Times(seconds, np.zeros(len(ops), np.bool_))


class Prices:
    """Prices of the collectives of ``runs``, made once for all runs whose groups lie equally on their nodes."""

    def __init__(self, runs: Runs, cluster: Cluster, efficiency: Efficiency) -> None:
        index_of = dict[Hashable, int]()
        kinds = np.array([index_of.setdefault(priced_by(one), len(index_of)) for one in runs.ones], np.intp)
        placed = np.concatenate([runs.cells[PLACING], kinds[runs.group][None]])
        _, first, self._of = np.unique(placed, axis=1, return_index=True, return_inverse=True)
        self._pricings = [pricing(runs[int(row)], cluster, efficiency) for row in first]

    def seconds(self, those: Rows) -> Callable[[Collective], float]:
        """Returns the function that prices a collective of the runs ``those``, by how its group lies in each."""
        return Groups(self._pricings, self._of.reshape(-1)[those]).seconds


class Groups:
    """The process groups of each row and the prices of their collectives. ``of`` ``[rows]``: index into ``prices``."""

    def __init__(self, prices: Sequence[Pricing], of: Rows) -> None:
        self._prices, self._of = prices, of
        self._lying_by_group: dict[str, list[tuple[Rows, Pricing]]] = {}
        self._seconds: dict[Collective, float] = {}

    def seconds(self, op: Collective) -> float:
        """Returns the seconds of ``op`` on every row, by how its group lies there."""
        if op not in self._seconds:
            self._seconds[op] = self._price(op)
        return self._seconds[op]

    def _price(self, op: Collective) -> float:
        if op.group not in self._lying_by_group:
            self._lying_by_group[op.group] = self._rows_by_shape(op.group)
        seconds = np.empty(len(self._of))
        for members, price in self._lying_by_group[op.group]:
            try:
                seconds[members] = raw(price.seconds(part(op, members)))
            except Split as split:
                labels = np.full(len(seconds), -1)
                labels[members] = np.unique(split.labels, return_inverse=True)[1]
                raise Split(labels) from None
        return column(seconds)  # type: ignore[no-any-return]

    def _rows_by_shape(self, group: str) -> list[tuple[Rows, Pricing]]:
        shapes: dict[GroupShape | None, int] = {}
        used = np.unique(self._of)
        shape_of = {of: shapes.setdefault(self._prices[of].groups.get(group), len(shapes)) for of in used.tolist()}
        label = np.array([shape_of[of] for of in self._of.tolist()])
        return [(rows, self._prices[self._of[rows[0]]]) for rows in split_by_label(np.arange(len(label)), label)]
