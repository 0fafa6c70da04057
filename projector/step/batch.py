"""Step seconds of many runs: figures of their stages and of what is done once a step, in columns; then their schedules,
in batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass
from projector.errors import InputError, Unsupported
from projector.frameworks.columns import Layouts, laid_out, numbered
from projector.frameworks.scope import but_for_passing, told_once
from projector.frameworks.types import Resolved
from projector.hardware.types import Cluster, Efficiency
from projector.kernels.settings import Settings
from projector.kernels.simulate import shared as kernels_of
from projector.layers.step import optimizer
from projector.memory.holding import Pipeline, pipeline, placement, tuned
from projector.memory.parameters import Contents, weights_of
from projector.operators.types import Collective, HostWork, Operator
from projector.operators.weights import WeightSet, held
from projector.pipeline import Schedule, choose, periodic
from projector.pipeline.bounds import lower_bound
from projector.pipeline.exchange import Exchange, finish
from projector.size import Rows, part, trace
from projector.step import filling, muon
from projector.step.columns import Groups, Kernels, staged
from projector.step.cycle import (
    Stages,
    assembled,
    between_steps,
    compiled_schedule,
    exchange,
    messages,
    rank_figures,
    shared,
    stage_figures,
)
from projector.step.neighbours import pipelined
from projector.step.priced import pricing
from projector.step.slowest import slowed, slowest
from projector.step.stages import splits, trained_of
from projector.step.timing import Clock

Floats = NDArray[np.float64]
#: Of every virtual stage ``[…, stages]``: forward, backward without and of the weight gradients where these are apart.
Seconds = tuple[Floats, Floats, Floats]
_WIDE = 64  # runs evaluated together: their timelines stay within some tens of megabytes


def shortest(runs: Sequence[Resolved], stages: Sequence[Seconds]) -> Floats:
    """Returns ``[runs]``: seconds that no step can beat, in whatever order, by the seconds of its ``stages``."""
    found = np.array([between_steps(run) for run in runs])
    alike: dict[tuple[object, bool], list[int]] = {}
    for i, run in enumerate(runs):
        alike.setdefault((placement(run), splits(run.workload.recipe)), []).append(i)
    for (where, split), rows in alike.items():
        forward, inputs, weight = (np.stack([stages[i][part] for i in rows]) for part in range(3))
        microbatches = np.array([runs[i].workload.num_microbatches for i in rows])
        found[rows] += lower_bound(where, microbatches, forward, inputs, weight, split=split)  # type: ignore[arg-type]
    return found


@dataclass(frozen=True, slots=True)
class _Surrounded:
    """Runs (``rows``) with one pipeline, and seconds of what surrounds it and of its messages ``[rows, …]``."""

    rows: Rows
    stages: Stages
    exchange: Exchange
    messages: Floats


def step_seconds(
    runs: Sequence[Resolved],
    stages: Sequence[Floats],
    cluster: Cluster,
    efficiency: Efficiency,
    settings: Settings,
    fits: Callable[[int, Schedule], bool],
) -> Floats:
    """``[runs]``. ``stages``: of every run, see :func:`projector.step.columns.staged`. ``fits``: whether the i-th does in
    memory, asked where its order depends on its times; NaN where it does not."""
    found = np.full(len(runs), np.nan)
    for each in _Once(runs, cluster, efficiency, settings).surrounding(stages):
        shown = [_shown(runs[i]) for i in each.rows]
        found[each.rows] = _played(runs, each, shown, fits)
        again = np.array([short is not None for short in shown]) & np.isnan(
            found[each.rows]
        )  # it does not repeat itself
        if again.any():
            one = _only(each, np.flatnonzero(again))
            found[one.rows] = _played(runs, one, [None] * len(one.rows), fits)
    return found + _idle(runs, stages, cluster, efficiency, settings)


def _idle(
    runs: Sequence[Resolved], stages: Sequence[Floats], cluster: Cluster, efficiency: Efficiency, settings: Settings
) -> Floats:
    """``[runs]``: seconds that a step waits for stages that compute on nothing."""
    found, empty = np.zeros(len(runs)), {i: filling.idle(run) for i, run in enumerate(runs)}
    those = {i: run for i, run in empty.items() if run is not None}
    for i, each in zip(those, staged(list(those.values()), cluster, efficiency, settings), strict=True):
        if isinstance(each, InputError | Unsupported):
            raise each
        found[i] = filling.seconds(stages[i], each, runs[i].workload.recipe.pp)
    return found


def _shown(run: Resolved) -> int | None:
    """Micro-batches of a shorter schedule that may stand for the whole one."""
    workload, recipe = run.workload, run.workload.recipe
    if pipelined(recipe):
        return None
    name = choose(recipe.pipeline_schedule, recipe.pp, recipe.vpp)
    group = recipe.microbatch_group_size_per_vp_stage
    return periodic.shorter(name, recipe.pp, recipe.vpp, workload.num_microbatches, group)


def _played(
    runs: Sequence[Resolved], each: _Surrounded, shown: Sequence[int | None], fits: Callable[[int, Schedule], bool]
) -> Floats:
    """``[rows]``: NaN where one does not fit, and where what is ``shown`` stands for nothing."""
    found = np.full(len(each.rows), np.nan)
    alike: dict[Hashable, list[int]] = {}
    for row, i in enumerate(each.rows):
        alone = row if _alone(runs[i]) else -1
        recipe, m = runs[i].workload.recipe, shown[row] or runs[i].workload.num_microbatches
        key = recipe.pipeline_schedule, recipe.vpp, recipe.microbatch_group_size_per_vp_stage, m, shown[row], alone
        alike.setdefault(key, []).append(row)
    for group in alike.values():
        for first in range(0, len(group), _WIDE):
            rows = np.array(group[first : first + _WIDE])
            found[rows] = _seconds(runs, _only(each, rows), shown[rows[0]], fits)
    return found


def _alone(run: Resolved) -> bool:
    """Whether its schedule is evaluated apart from all others: its order is its own, or its actions run in pairs."""
    return tuned(run) or pipelined(run.workload.recipe)


def _only(each: _Surrounded, rows: Rows | int) -> _Surrounded:
    """Some of them, or one, without an axis for runs."""
    around = {name: getattr(each.exchange, name)[rows] for name in _AROUND}
    stages, messages = Stages(*[figure[rows] for figure in each.stages]), each.messages[rows]
    return _Surrounded(each.rows[rows], stages, replace(each.exchange, **around), messages)


_AROUND = ("reduce", "gather", "optimizer", "last", "first", "idle", "tied")


def _seconds(
    runs: Sequence[Resolved], each: _Surrounded, shown: int | None, fits: Callable[[int, Schedule], bool]
) -> Floats:
    """Of runs on one schedule."""
    one = runs[each.rows[0]]
    numbers = np.array([runs[i].workload.num_microbatches for i in each.rows])
    plain = _only(each, 0) if _alone(one) else each
    made = assembled(one, plain.stages, plain.messages, plain.exchange, numbers[0] if _alone(one) else numbers, shown)
    if tuned(one) and not fits(int(each.rows[0]), made.compiled.schedule):
        return np.full(1, np.nan)
    start = made.arrival()
    timeline = made.play(start, made.messages)
    seconds = made.seconds(start, finish(made.exchange, timeline))
    if shown is None:
        return seconds
    return seconds + periodic.later(timeline, numbers, one.workload.recipe.microbatch_group_size_per_vp_stage)


_Arrays = tuple[Rows, Floats, Floats, Floats, Floats]


class _Once:
    """What ``runs`` do once a step."""

    def __init__(self, runs: Sequence[Resolved], cluster: Cluster, efficiency: Efficiency, settings: Settings) -> None:
        self._runs = runs
        self._prices = [pricing(run, cluster, efficiency) for run in runs]
        self._device = settings.device(cluster.gpu, efficiency)
        self._efficiency = efficiency
        known: dict[Hashable, Pipeline] = {}
        each = [pipeline(run, placement(run), known) for run in runs]
        alike = {(one.placement, one.contents, one.stages): one for one in each}  # whatever of them is recomputed
        self._pipelines = [alike[one.placement, one.contents, one.stages] for one in each]

    def surrounding(self, stages: Sequence[Floats]) -> Iterator[_Surrounded]:
        """What surrounds pipelines whose ``stages`` take these seconds."""

        def alike(run: Resolved) -> Hashable:
            return but_for_passing(run), told_once(run), run.workload.gpus

        for _, made in laid_out(self._runs, alike, self._built, len(self._runs) or 1):
            if isinstance(made, InputError | Unsupported):
                raise made
            for places, ranks, chunks, between, sent in made:
                figures, one = Stages(*np.stack([stages[i] for i in places], axis=1)), self._runs[places[0]]
                schedule = compiled_schedule(one, _shown(one)).schedule
                around = exchange(one, schedule, ranks, chunks, list(between), figures)
                yield _Surrounded(places, figures, around, sent)

    def _built(self, layouts: Layouts, those: Rows) -> list[_Arrays]:
        """Of those runs, whose ranks hold the same weights but for their numbers, pipeline by pipeline: which they are;
        ``[4, rows, pp]`` and ``[3, rows, stages]`` as :func:`exchange` takes them; ``[2, rows, pp]``: :func:`shared`;
        ``[rows, stages − 1]``: :func:`messages`."""
        run = layouts.run()
        groups: dict[Pipeline, list[int]] = {}
        for row, i in enumerate(those):
            groups.setdefault(self._pipelines[i], []).append(row)
        ranks: dict[Contents, dict[int, None]] = {}
        chunks: dict[tuple[Contents, bool], dict[int, None]] = {}
        for where, group in groups.items():
            for what in dict.fromkeys(where.contents):
                ranks.setdefault(what, {}).update(dict.fromkeys(group))
            for key in dict.fromkeys((what, v == 0) for v, what in enumerate(where.stages)):
                chunks.setdefault(key, {}).update(dict.fromkeys(group))
        names = {name for what in ranks for name, _ in what.blocks}
        weights = {name: weights_of(run, name).weights for name in names}

        def whole(run: Resolved, alike: Sequence[Contents], place: Rows, those: Rows) -> WeightSet:
            counts = numbered([what.blocks for what in alike], place)
            return trained_of(run, held((part(weights[name], those), number) for name, number in counts))

        def rank(run: Resolved, alike: Sequence[Contents], place: Rows, rows: Rows) -> Sequence[float]:
            own = whole(run, alike, place, rows)
            return rank_figures(run, self._clock(run, those[rows], own), own)

        def stage(run: Resolved, alike: Sequence[tuple[Contents, bool]], place: Rows, rows: Rows) -> Sequence[float]:
            own = whole(run, [what for what, _ in alike], place, rows)
            return stage_figures(run, own, 0 if alike[0][1] else 1)

        by_rank = layouts.folded(ranks.items(), lambda what: what.shape, rank, 4)
        by_stage = layouts.folded(chunks.items(), lambda key: (key[0].shape, key[1]), stage, 3)
        storage = any(weight.storage for each in weights.values() for weight in each)
        return [
            each
            for where, group in groups.items()
            for each in self._laid(layouts, where, np.array(group), those, by_rank, by_stage, whole, storage)
        ]

    def _laid(
        self,
        layouts: Layouts,
        where: Pipeline,
        group: Rows,
        those: Rows,
        by_rank: Mapping[Contents, Floats],
        by_stage: Mapping[tuple[Contents, bool], Floats],
        whole: Callable[..., WeightSet],
        storage: bool,
    ) -> Iterator[_Arrays]:
        ranks = np.stack([by_rank[what][:, group] for what in where.contents], axis=-1)
        chunks = np.stack([by_stage[what, v == 0][:, group] for v, what in enumerate(where.stages)], axis=-1)
        one, stages = self._runs[those[group[0]]], len(where.stages)
        schedule = compiled_schedule(one, _shown(one)).schedule

        def build(own: Rows) -> tuple[Floats, Floats]:
            places = those[group[own]]
            run = layouts.run(group[own])
            clock = self._clock(run, places)
            each = np.zeros((2, len(own), len(where.contents)))
            if storage or schedule.copies > 1:
                make = {
                    what: whole(run, [what], np.zeros(len(own), np.intp), group[own]) for what in set(where.contents)
                }
                each[0], each[1] = shared(run, clock, schedule, [make[what] for what in where.contents])
            return each, np.broadcast_to(messages(run, clock, schedule), (len(own), stages - 1))

        for own, (between, sent) in trace(build, len(group)):
            yield those[group[own]], ranks[:, own], chunks[:, own], between, sent

    def _clock(self, run: Resolved, places: Rows, whole: WeightSet | None = None) -> Clock:
        """For what those runs do once a step with ``whole``."""
        ops: dict[Operator, None] = {}
        if whole is not None:
            ops |= {op: None for op in optimizer(run, whole) if not isinstance(op, Collective | HostWork)}
            ops |= {op: None for op, _ in muon.products(run, whole)}
        model = Kernels(kernels_of(*self._device, run.execution), len(places))
        seconds = dict(zip(ops, model.times(list(ops)).seconds, strict=True))  # type: ignore[arg-type]
        groups = Groups([self._prices[i] for i in places])
        return Clock(
            slowed(seconds, slowest(self._efficiency, run.workload.gpus)), frozenset(), groups.seconds, run.execution
        )
