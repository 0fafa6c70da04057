"""Step seconds of many runs: figures of their stages and of what is done once a step, in columns; then their schedules,
in batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass
from projector.errors import InputError, Unsupported
from projector.frameworks.columns import Layouts, Runs, laid_out, numbered, parted
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
from projector.step.columns import Kernels, Prices, staged
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
from projector.step.slowest import slowed, slowest
from projector.step.stages import splits, trained_of
from projector.step.timing import Clock

Floats = NDArray[np.float64]
#: Of every virtual stage ``[…, stages]``: forward, backward without and of the weight gradients where these are apart.
Seconds = tuple[Floats, Floats, Floats]
_WIDE = 64  # runs evaluated together: their timelines stay within some tens of megabytes


def shortest(runs: Runs, stages: Mapping[int, Floats]) -> Floats:
    """Returns ``[runs]``: seconds that no step can beat, in whatever order, by the seconds of its ``stages`` (see
    :func:`projector.step.columns.staged`); infinite where there are none."""
    found = np.full(len(runs), np.inf)
    alike: dict[tuple[object, bool], list[Rows]] = {}
    for one, group in runs.groups(np.array(sorted(stages), np.intp)):
        alike.setdefault((placement(runs[int(group[0])]), splits(one.workload.recipe)), []).append(group)
        found[group] = between_steps(one)
    for (where, split), groups in alike.items():
        those = np.concatenate(groups)
        forward, inputs, weight = np.stack([stages[i][:3] for i in those.tolist()], axis=1)
        found[those] += lower_bound(where, runs.microbatches[those], forward, inputs, weight, split=split)  # type: ignore[arg-type]
    return found


@dataclass(frozen=True, slots=True)
class _Surrounded:
    """Runs (``rows``) with one pipeline, and seconds of what surrounds it and of its messages ``[rows, …]``."""

    rows: Rows
    stages: Stages
    exchange: Exchange
    messages: Floats


def step_seconds(
    runs: Runs,
    stages: Mapping[int, Floats],
    cluster: Cluster,
    efficiency: Efficiency,
    settings: Settings,
    fits: Callable[[int, Schedule], bool],
) -> Floats:
    """``[runs]``. ``stages``: of every run, see :func:`projector.step.columns.staged`. ``fits``: whether the i-th does in
    memory, asked where its order depends on its times; NaN where it does not."""
    found = np.full(len(runs), np.nan)
    for each in _Once(runs, cluster, efficiency, settings).surrounding(stages):
        found[each.rows], cut = _played(runs, each, fits, cut=True)
        again = cut & np.isnan(found[each.rows])  # it does not repeat itself
        if again.any():
            one = _only(each, np.flatnonzero(again))
            found[one.rows], _ = _played(runs, one, fits, cut=False)
    return found + _idle(runs, stages, cluster, efficiency, settings)


def _idle(
    runs: Runs, stages: Mapping[int, Floats], cluster: Cluster, efficiency: Efficiency, settings: Settings
) -> Floats:
    """``[runs]``: seconds that a step waits for stages that compute on nothing."""
    found, empty = np.zeros(len(runs)), [filling.idle(one) for one in runs.ones]
    those = np.flatnonzero(np.array([one is not None for one in empty], np.bool_)[runs.group])
    if len(those):
        ones = [bare or one for bare, one in zip(empty, runs.ones, strict=True)]
        each, refused = staged(replace(runs, ones=ones).only(those), cluster, efficiency, settings)
        for error in refused.values():
            raise error
        for place, i in enumerate(those.tolist()):
            found[i] = filling.seconds(stages[i], each[place], runs[i].workload.recipe.pp)
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
    runs: Runs, each: _Surrounded, fits: Callable[[int, Schedule], bool], *, cut: bool
) -> tuple[Floats, NDArray[np.bool_]]:
    """``[rows]``: NaN where one does not fit, and where a shorter schedule stands for nothing; whether one was played, which
    is asked for by ``cut``."""
    found, short = np.full(len(each.rows), np.nan), np.zeros(len(each.rows), np.bool_)
    alike: dict[tuple[Any, ...], list[Rows]] = {}
    for group in parted(np.arange(len(each.rows)), runs.group[each.rows]):
        for own in parted(group, runs.microbatches[each.rows[group]]):
            run = runs[int(each.rows[own[0]])]
            recipe, shown = run.workload.recipe, _shown(run) if cut else None
            short[own], m = shown is not None, shown or run.workload.num_microbatches
            key = recipe.pipeline_schedule, recipe.vpp, recipe.microbatch_group_size_per_vp_stage, m, shown
            if tuned(run):
                alike |= {(row, *key): [np.array([row])] for row in own.tolist()}
            else:
                alike.setdefault(key, []).append(own)
    for (*_, shown), parts in alike.items():
        whole = np.concatenate(parts)
        for first in range(0, len(whole), _WIDE):
            those = whole[first : first + _WIDE]
            found[those] = _seconds(runs, _only(each, those), shown, fits)
    return found, short


def _only(each: _Surrounded, rows: Rows | int) -> _Surrounded:
    """Some of them, or one, without an axis for runs."""
    around = {name: getattr(each.exchange, name)[rows] for name in _AROUND}
    stages, messages = Stages(*[figure[rows] for figure in each.stages]), each.messages[rows]
    return _Surrounded(each.rows[rows], stages, replace(each.exchange, **around), messages)


_AROUND = ("reduce", "gather", "optimizer", "last", "first", "idle", "tied")


def _seconds(runs: Runs, each: _Surrounded, shown: int | None, fits: Callable[[int, Schedule], bool]) -> Floats:
    """Of runs on one schedule."""
    one, numbers = runs[int(each.rows[0])], runs.microbatches[each.rows]
    own = tuned(one)  # its order is its own: evaluated apart from all others
    plain = _only(each, 0) if own else each
    made = assembled(one, plain.stages, plain.messages, plain.exchange, numbers[0] if own else numbers, shown)
    if own and not fits(int(each.rows[0]), made.compiled.schedule):
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

    def __init__(self, runs: Runs, cluster: Cluster, efficiency: Efficiency, settings: Settings) -> None:
        self._runs = runs
        self._prices = Prices(runs, cluster, efficiency)
        self._device = settings.device(cluster.gpu, efficiency)
        self._efficiency = efficiency
        self._pipelines = list[Pipeline]()
        known, places = dict[Hashable, Pipeline](), dict[Hashable, int]()
        self._whose = np.zeros(len(runs), np.intp)
        for _, group in runs.groups():
            run = runs[int(group[0])]
            one = pipeline(run, placement(run), known)
            key = one.placement, one.contents, one.stages  # whatever of them is recomputed
            if key not in places:
                places[key] = len(self._pipelines)
                self._pipelines.append(one)
            self._whose[group] = places[key]

    def surrounding(self, stages: Mapping[int, Floats]) -> Iterator[_Surrounded]:
        """What surrounds pipelines whose ``stages`` take these seconds."""

        def alike(run: Resolved) -> Hashable:
            return but_for_passing(run), told_once(run), run.workload.gpus

        for _, made in laid_out(self._runs, alike, self._built, len(self._runs) or 1):
            if isinstance(made, InputError | Unsupported):
                raise made
            for places, ranks, chunks, between, sent in made:
                figures = Stages(*np.stack([stages[i] for i in places.tolist()], axis=1))
                one = self._runs[int(places[0])]
                schedule = compiled_schedule(one, _shown(one)).schedule
                around = exchange(one, schedule, ranks, chunks, list(between), figures)
                yield _Surrounded(places, figures, around, sent)

    def _built(self, layouts: Layouts, those: Rows) -> list[_Arrays]:
        """Of those runs, whose ranks hold the same weights but for their numbers, pipeline by pipeline: which they are;
        ``[4, rows, pp]`` and ``[3, rows, stages]`` as :func:`exchange` takes them; ``[2, rows, pp]``: :func:`shared`;
        ``[rows, stages − 1]``: :func:`messages`."""
        run, own = layouts.run(), self._whose[those]
        groups = [(self._pipelines[own[rows[0]]], rows) for rows in parted(np.arange(len(own)), own)]
        names = {name for where, _ in groups for what in where.contents for name, _ in what.blocks}
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

        ranks = [(where.contents, rows) for where, rows in groups]
        chunks = [([(what, v == 0) for v, what in enumerate(where.stages)], rows) for where, rows in groups]
        by_rank = layouts.folded(ranks, lambda what: what.shape, rank, 4)
        by_stage = layouts.folded(chunks, lambda key: (key[0].shape, key[1]), stage, 3)
        storage = any(weight.storage for each in weights.values() for weight in each)
        return [
            each
            for where, group in groups
            for each in self._laid(layouts, where, group, those, by_rank, by_stage, whole, storage)
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
        one, stages = self._runs[int(those[group[0]])], len(where.stages)
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
        groups = self._prices.groups(places)
        return Clock(
            slowed(seconds, slowest(self._efficiency, run.workload.gpus)), frozenset(), groups.seconds, run.execution
        )
