"""Step seconds of many priced runs: what is done once a step of all of them together, then their schedules in batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from projector.frameworks.scope import as_weights_see, once_a_step
from projector.memo import Same
from projector.memory.holding import placement
from projector.memory.parameters import contents
from projector.operators.types import Operator
from projector.operators.weights import Held
from projector.pipeline import Schedule, choose, periodic
from projector.pipeline.exchange import finish
from projector.step.around import Around, around
from projector.step.cycle import Cycle, by_rank, cycle, stacked, tuned
from projector.step.neighbours import pipelined
from projector.step.priced import Priced
from projector.workload.composition import compositions

Floats = NDArray[np.float64]
_WIDE = 64  # runs evaluated together: their timelines stay within some tens of megabytes


def step_seconds(steps: Sequence[Priced], fits: Callable[[int, Schedule], bool]) -> Floats:
    """``[steps]``, of runs priced by the kernels of their device alone. ``fits``: whether the i-th does in memory, asked
    where its order depends on its times; NaN where it does not."""
    surrounded = _surroundings(steps)
    shown = [_shown(made) for made in steps]
    found = _played(steps, range(len(steps)), surrounded, shown, fits)
    again = [
        i for i, short in enumerate(shown) if short is not None and np.isnan(found[i])
    ]  # it does not repeat itself
    found[again] = _played(steps, again, surrounded, [None] * len(steps), fits)[again]
    return np.asarray(found + np.array([made.idle for made in steps]))


def _shown(made: Priced) -> int | None:
    """Micro-batches of a shorter schedule that may stand for the whole one."""
    workload, recipe = made.resolved.workload, made.resolved.workload.recipe
    if pipelined(recipe):
        return None
    name = choose(recipe.pipeline_schedule, recipe.pp, recipe.vpp)
    group = recipe.microbatch_group_size_per_vp_stage
    return periodic.shorter(name, recipe.pp, recipe.vpp, workload.num_microbatches, group)


def _played(
    steps: Sequence[Priced],
    those: Sequence[int],
    surrounded: Sequence[Sequence[Around]],
    shown: Sequence[int | None],
    fits: Callable[[int, Schedule], bool],
) -> Floats:
    """``[steps]``: of ``those``; NaN elsewhere, where one does not fit, and where what is ``shown`` stands for nothing."""
    found = np.full(len(steps), np.nan)

    def name(i: int) -> tuple[str, int, int, int]:
        workload, recipe = steps[i].resolved.workload, steps[i].resolved.workload.recipe
        return recipe.pipeline_schedule or "", recipe.pp, recipe.vpp, shown[i] or workload.num_microbatches

    # schedule by schedule: few of them are in the memory at a time
    for _, alike in groupby(sorted(those, key=name), key=name):
        cycles: dict[Hashable, list[tuple[int, Cycle]]] = {}
        for i in alike:
            made = steps[i]
            run = cycle(made.resolved, made.times, made.held, made.clock({}), surrounded[i], shown[i])
            if not tuned(made.resolved) or fits(i, run.compiled.schedule):
                cycles.setdefault((shown[i], _alike(run)), []).append((i, run))
        for group in cycles.values():
            for first in range(0, len(group), _WIDE):
                rows, runs = zip(*group[first : first + _WIDE], strict=True)
                found[list(rows)] = _seconds(runs, [steps[i] for i in rows], shown[rows[0]] is not None)
    return found


def _alike(run: Cycle) -> Hashable:
    """Equal for runs whose schedules can be evaluated together."""
    exchange = run.exchange
    together = id(run.compiled), run.overlap_p2p, run.overlap_flush, exchange.overlap_reduce, exchange.overlap_gather
    return (*together, exchange.logged, id(run) if run.hidden is not None else None)


def _seconds(runs: Sequence[Cycle], steps: Sequence[Priced], cut: bool) -> Floats:
    """``cut``: their schedule is shorter than that of the ``steps``."""
    run = runs[0] if len(runs) == 1 else stacked(runs)
    start = run.arrival()
    timeline = run.play(start, run.messages)
    seconds = run.seconds(start, finish(run.exchange, timeline))
    if not cut:
        return seconds
    recipes = [made.resolved.workload.recipe for made in steps]
    numbers = np.array([made.resolved.workload.num_microbatches for made in steps])
    return seconds + periodic.later(timeline, numbers, recipes[0].microbatch_group_size_per_vp_stage)


def _surroundings(steps: Sequence[Priced]) -> list[list[Around]]:
    """Of every rank of every step: ranks of many runs hold the same weights and share them in the same way, and all are
    priced by one vectorised call for each kernel model."""
    ranks = [list(_ranks(made)) for made in steps]
    new: dict[Hashable, tuple[Priced, Held]] = {}
    for made, each in zip(steps, ranks, strict=True):
        for key, whole in each:
            new.setdefault(key, (made, whole))
    once = _once([made for made, _ in new.values()])
    found = {key: around(made.resolved, made.clock(once[_chip(made)]), whole) for key, (made, whole) in new.items()}
    return [[found[key] for key, _ in each] for each in ranks]


def _ranks(made: Priced) -> Iterator[tuple[Hashable, Held]]:
    """What every rank holds, and a key of what it spends around its pipeline."""
    run = made.resolved
    _, kinds = compositions(run.workload.model, run.workload.recipe)
    shared = Same(made.model), Same(made.price), made.slowest, as_weights_see(run), once_a_step(run)
    where = placement(run)
    for own, whole in zip(where, by_rank(made.held, where), strict=True):
        yield (shared, contents(tuple([kinds[v] for v in own]))), whole


def _chip(made: Priced) -> Hashable:
    """Equal for steps whose operators take the same time."""
    return id(made.model), made.slowest


def _once(steps: Sequence[Priced]) -> dict[Hashable, Mapping[Operator, float]]:
    """Seconds of all that is computed once a step, by the chip that computes it."""
    ops: dict[Hashable, dict[Operator, None]] = {}
    chips = {_chip(made): made for made in steps}
    for made in {id(made): made for made in steps}.values():
        ops.setdefault(_chip(made), {}).update(dict.fromkeys(made.optimizers()))
    return {chip: chips[chip].timed(list(those)) for chip, those in ops.items()}
