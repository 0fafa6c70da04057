"""Computes the step seconds of many runs: figures of their stages and of what is done once a step are columns; their
schedules are then evaluated in batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass
from projector.errors import InputError, Unsupported
from projector.frameworks.columns import Layouts, Runs, built_in_groups, counted_columns, split_by_label
from projector.frameworks.scope import once_per_step_key, weight_key
from projector.frameworks.types import Resolved
from projector.hardware.types import Cluster, Efficiency
from projector.kernels.settings import Settings
from projector.kernels.simulate import shared as kernels_of
from projector.memory.holding import Pipeline, pipeline, placement, tuned
from projector.memory.parameters import Contents, weights_of
from projector.operators.weights import WeightSet, weight_set
from projector.pipeline import Schedule, choose, periodic
from projector.pipeline.bounds import lower_bound
from projector.pipeline.exchange import Exchange, finish
from projector.size import Floats, Rows, part, trace
from projector.step import unfed_stages
from projector.step.columns import Prices, column_times, stage_figures_of
from projector.step.combined_1f1b import schedule_pairs
from projector.step.cycle import (
    Stages,
    between_steps,
    compiled_schedule,
    cycle_from_stages,
    exchange,
    messages,
    once_a_step,
    rank_figures,
    shared_gradient_seconds,
    stage_figures,
)
from projector.step.slowest_chip import slowed, slowest
from projector.step.stages import splits, trained_of
from projector.step.timing import Clock

#: Seconds of every virtual stage ``[…, stages]``: forward, backward without split weight gradients, split weight gradients.
Seconds = tuple[Floats, Floats, Floats]
_WIDE = 64  # runs evaluated together: their timelines stay within some tens of megabytes


def step_lower_bounds(runs: Runs, stages: Mapping[int, Floats]) -> Floats:
    """Returns ``[runs]``: seconds that no step can beat, whatever the order of the schedule, from the seconds of its
    ``stages`` (see :func:`projector.step.columns.stage_figures_of`); infinite for runs without stages there."""
    seconds = np.full(len(runs), np.inf)
    groups_of: dict[tuple[object, bool], list[Rows]] = {}
    for one, group in runs.groups(np.array(sorted(stages), np.intp)):
        groups_of.setdefault((placement(runs[int(group[0])]), splits(one.workload.recipe)), []).append(group)
        seconds[group] = between_steps(one)
    for (place, split), groups in groups_of.items():
        members = np.concatenate(groups)
        forward, inputs, weight = np.stack([stages[i][:3] for i in members.tolist()], axis=1)
        seconds[members] += lower_bound(place, runs.microbatches[members], forward, inputs, weight, split=split)  # type: ignore[arg-type]
    return seconds


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """Runs (``rows``) with one pipeline: seconds of its messages and of what surrounds it ``[rows, …]``."""

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
    """Returns ``[runs]`` seconds of a step. ``stages``: of every run, see
    :func:`projector.step.columns.stage_figures_of`. ``fits``: asked whether run i fits in memory under a schedule whose
    order depends on its times; NaN where it does not."""
    seconds = np.full(len(runs), np.nan)
    for surrounded in _OncePerStep(runs, stages, cluster, efficiency, settings).surroundings():
        seconds[surrounded.rows], shortened = _evaluated(runs, surrounded, fits, shorten=True)
        unsteady = shortened & np.isnan(seconds[surrounded.rows])  # the shorter schedule does not become periodic
        if unsteady.any():
            rest = _rows_of(surrounded, np.flatnonzero(unsteady))
            seconds[rest.rows], _ = _evaluated(runs, rest, fits, shorten=False)
    return seconds + _idle_seconds(runs, stages, cluster, efficiency, settings)


def _idle_seconds(
    runs: Runs, stages: Mapping[int, Floats], cluster: Cluster, efficiency: Efficiency, settings: Settings
) -> Floats:
    """Returns ``[runs]`` seconds that a step waits for stages that compute without input."""
    seconds, empty = np.zeros(len(runs)), [unfed_stages.fed_with_zeros(one) for one in runs.ones]
    waiting = np.flatnonzero(np.array([one is not None for one in empty], np.bool_)[runs.group])
    if len(waiting):
        bare_runs = [bare or one for bare, one in zip(empty, runs.ones, strict=True)]
        bare_stages, refused = stage_figures_of(
            replace(runs, ones=bare_runs).only(waiting), cluster, efficiency, settings
        )
        for error in refused.values():
            raise error
        for place, i in enumerate(waiting.tolist()):
            seconds[i] = unfed_stages.seconds(stages[i], bare_stages[place], runs[i].workload.recipe.pp)
    return seconds


def _shorter_microbatches(run: Resolved) -> int | None:
    """Returns the micro-batches of a shorter schedule that may stand for the whole one; None where none may."""
    workload, recipe = run.workload, run.workload.recipe
    if schedule_pairs(recipe):
        return None
    name = choose(recipe.pipeline_schedule, recipe.pp, recipe.vpp)
    group = recipe.microbatch_group_size_per_vp_stage
    return periodic.shorter(name, recipe.pp, recipe.vpp, workload.num_microbatches, group)


def _evaluated(
    runs: Runs, surrounded: _Surroundings, fits: Callable[[int, Schedule], bool], *, shorten: bool
) -> tuple[Floats, NDArray[np.bool_]]:
    """Returns ``[rows]`` seconds, NaN where a run does not fit or its shorter schedule is not periodic, and whether a
    shorter schedule was evaluated, as ``shorten`` asks."""
    seconds, shortened = np.full(len(surrounded.rows), np.nan), np.zeros(len(surrounded.rows), np.bool_)
    batches: dict[tuple[Any, ...], list[Rows]] = {}
    for group in split_by_label(np.arange(len(surrounded.rows)), runs.group[surrounded.rows]):
        for rows in split_by_label(group, runs.microbatches[surrounded.rows[group]]):
            run = runs[int(surrounded.rows[rows[0]])]
            recipe, shown = run.workload.recipe, _shorter_microbatches(run) if shorten else None
            shortened[rows], m = shown is not None, shown or run.workload.num_microbatches
            key = recipe.pipeline_schedule, recipe.vpp, recipe.microbatch_group_size_per_vp_stage, m, shown
            if tuned(run):
                batches |= {(row, *key): [np.array([row])] for row in rows.tolist()}
            else:
                batches.setdefault(key, []).append(rows)
    for (*_, shown), parts in batches.items():
        members = np.concatenate(parts)
        for first in range(0, len(members), _WIDE):
            batch = members[first : first + _WIDE]
            seconds[batch] = _schedule_seconds(runs, _rows_of(surrounded, batch), shown, fits)
    return seconds, shortened


def _rows_of(surrounded: _Surroundings, rows: Rows | int) -> _Surroundings:
    """Returns the surroundings of some ``rows``, or of one, without an axis for runs."""
    around = {name: getattr(surrounded.exchange, name)[rows] for name in _EXCHANGE_FIELDS}
    stages, messages = Stages(*[figure[rows] for figure in surrounded.stages]), surrounded.messages[rows]
    return _Surroundings(surrounded.rows[rows], stages, replace(surrounded.exchange, **around), messages)


_EXCHANGE_FIELDS = ("reduce", "gather", "optimizer", "last", "first", "idle", "tied")


def _schedule_seconds(
    runs: Runs, surrounded: _Surroundings, shown: int | None, fits: Callable[[int, Schedule], bool]
) -> Floats:
    """Returns the seconds of runs on one schedule; ``shown``: micro-batches of the shorter schedule that stands for it."""
    run, numbers = runs[int(surrounded.rows[0])], runs.microbatches[surrounded.rows]
    alone = tuned(run)  # the order depends on the times of this run: no batch
    inputs = _rows_of(surrounded, 0) if alone else surrounded
    cycle = cycle_from_stages(
        run, inputs.stages, inputs.messages, inputs.exchange, numbers[0] if alone else numbers, shown
    )
    if alone and not fits(int(surrounded.rows[0]), cycle.compiled.schedule):
        return np.full(1, np.nan)
    start = cycle.arrival()
    timeline = cycle.play(start, cycle.messages)
    seconds = cycle.seconds(start, finish(cycle.exchange, timeline))
    if shown is None:
        return seconds
    return seconds + periodic.later(timeline, numbers, run.workload.recipe.microbatch_group_size_per_vp_stage)


class _OncePerStep:
    """Prices what ``runs``, whose ``stages`` take these seconds, do once a step: gradient reduction, parameter gather,
    optimizer, messages."""

    def __init__(
        self, runs: Runs, stages: Mapping[int, Floats], cluster: Cluster, efficiency: Efficiency, settings: Settings
    ) -> None:
        self._runs, self._stages = runs, stages
        self._prices = Prices(runs, cluster, efficiency)
        self._device = settings.device(cluster.gpu, efficiency)
        self._efficiency = efficiency
        self._pipelines = list[Pipeline]()
        known, places = dict[Hashable, Pipeline](), dict[Hashable, int]()
        self._pipeline_of = np.zeros(len(runs), np.intp)
        for _, group in runs.groups():
            run = runs[int(group[0])]
            where = pipeline(run, placement(run), known)
            key = where.placement, where.contents, where.stages  # recompute changes none of them
            if key not in places:
                places[key] = len(self._pipelines)
                self._pipelines.append(where)
            self._pipeline_of[group] = places[key]

    def surroundings(self) -> Iterator[_Surroundings]:
        """Yields what surrounds the pipelines of all runs."""

        def key(run: Resolved) -> Hashable:
            return weight_key(run), once_per_step_key(run), run.workload.gpus

        for _, surroundings in built_in_groups(self._runs, key, self._once_per_step, len(self._runs) or 1):
            if isinstance(surroundings, InputError | Unsupported):
                raise surroundings
            yield from surroundings

    def _once_per_step(self, layouts: Layouts, members: Rows) -> list[_Surroundings]:
        """Returns what surrounds each pipeline of the runs ``members``, whose ranks hold equal weights in other numbers."""
        run, indices = layouts.run(), self._pipeline_of[members]
        groups = [
            (self._pipelines[indices[rows[0]]], rows) for rows in split_by_label(np.arange(len(indices)), indices)
        ]
        names = {name for pipe, _ in groups for contents in pipe.contents for name, _ in contents.blocks}
        weights = {name: weights_of(run, name).weights for name in names}

        def weights_in(run: Resolved, parts: Sequence[Contents], place: Rows, rows: Rows) -> WeightSet:
            counts = counted_columns([contents.blocks for contents in parts], place)
            return trained_of(run, weight_set((part(weights[name], rows), number) for name, number in counts))

        def rank(run: Resolved, parts: Sequence[Contents], place: Rows, rows: Rows) -> Sequence[float]:
            held_weights = weights_in(run, parts, place, rows)
            return rank_figures(run, self._clock(run, members[rows], held_weights), held_weights)

        def stage(run: Resolved, parts: Sequence[tuple[Contents, bool]], place: Rows, rows: Rows) -> Sequence[float]:
            held_weights = weights_in(run, [contents for contents, _ in parts], place, rows)
            return stage_figures(run, held_weights, 0 if parts[0][1] else 1)

        ranks = [(pipe.contents, rows) for pipe, rows in groups]
        chunks = [([(contents, v == 0) for v, contents in enumerate(pipe.stages)], rows) for pipe, rows in groups]
        by_rank = layouts.folded(ranks, lambda contents: contents.shape, rank, 4)
        by_stage = layouts.folded(chunks, lambda key: (key[0].shape, key[1]), stage, 3)
        storage = any(weight.storage for arrays in weights.values() for weight in arrays)
        return [
            surrounded
            for pipe, group in groups
            for surrounded in self._by_branch(layouts, pipe, group, members, by_rank, by_stage, weights_in, storage)
        ]

    def _by_branch(
        self,
        layouts: Layouts,
        pipe: Pipeline,
        group: Rows,
        members: Rows,
        by_rank: Mapping[Contents, Floats],
        by_stage: Mapping[tuple[Contents, bool], Floats],
        weights_in: Callable[..., WeightSet],
        storage: bool,
    ) -> Iterator[_Surroundings]:
        ranks = np.stack([by_rank[contents][:, group] for contents in pipe.contents], axis=-1)
        chunks = np.stack([by_stage[contents, v == 0][:, group] for v, contents in enumerate(pipe.stages)], axis=-1)
        first, stages = self._runs[int(members[group[0]])], len(pipe.stages)
        schedule = compiled_schedule(first, _shorter_microbatches(first)).schedule

        def build(rows: Rows) -> tuple[Sequence[Floats], Floats]:
            run, none = layouts.run(group[rows]), np.zeros(len(rows), np.intp)
            clock, seconds = self._clock(run, members[group[rows]]), np.zeros((2, len(rows), len(pipe.contents)))
            if storage or schedule.copies > 1:
                sets = {contents: weights_in(run, [contents], none, group[rows]) for contents in set(pipe.contents)}
                held = [sets[contents] for contents in pipe.contents]
                seconds[0], seconds[1] = shared_gradient_seconds(run, clock, schedule, held)
            return [*seconds], np.broadcast_to(messages(run, clock, schedule), (len(rows), stages - 1))

        for rows, (between, sent) in trace(build, len(group)):
            own = members[group[rows]]
            figures = Stages(*np.stack([self._stages[i] for i in own.tolist()], axis=1))
            around = exchange(first, schedule, ranks[:, rows], chunks[:, rows], between, figures)
            yield _Surroundings(own, figures, around, sent)

    def _clock(self, run: Resolved, places: Rows, whole: WeightSet | None = None) -> Clock:
        """Returns the clock for what the runs at ``places`` do once a step with the weights ``whole``."""
        ops = {} if whole is None else once_a_step(run, whole)
        times = column_times(kernels_of(*self._device, run.execution), len(places), list(ops))  # type: ignore[arg-type]
        seconds = slowed(dict(zip(ops, times.seconds, strict=True)), slowest(self._efficiency, run.workload.gpus))
        return Clock(seconds, frozenset(), self._prices.seconds(places), run.execution)
