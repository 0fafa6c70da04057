"""Finds the best order there is, for small cases: a mixed-integer programme over what each rank does before what.

Micro-batches are equal, so an optimal order exists in which every rank takes them in turn for each kind and chunk (the
k-th forward of a stage may be called micro-batch k). What is left to choose is how kinds and chunks interleave on a
rank: one binary for each pair of its actions that the data flow leaves open. Solved by HiGHS through SciPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, raise_all
from projector.pipeline.bounds import lower_bound
from projector.pipeline.compiler import compile_schedule
from projector.pipeline.evaluator import evaluate
from projector.pipeline.optimal_model import Model, Task
from projector.pipeline.residency import peak
from projector.pipeline.types import Action, Costs, Schedule

LARGEST = 240
"""Actions of the largest case that is tried: about what HiGHS closes in seconds (pp 4, m 8, split: 96 actions)."""


@dataclass(frozen=True)
class Optimum:
    """The best order found. ``makespan`` of ``schedule`` and a ``bound`` (seconds) that no order within the limit
    beats; ``proven``: they meet. ``gap``: ``1 − bound / makespan``."""

    schedule: Schedule
    makespan: float
    bound: float
    proven: bool

    @property
    def gap(self) -> float:
        return 0.0 if self.proven or self.makespan <= 0 else max(0.0, 1.0 - self.bound / self.makespan)


def improve(schedule: Schedule, costs: Costs, limit: Sequence[int] | None = None, seconds: float = 10.0) -> Optimum:
    """Returns the fastest order with the placement, split and micro-batches of ``schedule``, searched for ``seconds``.

    ``limit[rank]``: chunks alive at most on each rank (default: what ``schedule`` holds at its own peak). Messages run
    beside compute. Never worse than ``schedule`` itself where that keeps to the limit. Raises :class:`InputError` when
    the case is too large, or when a limit is below one chunk or no order keeps to it.
    """
    compiled = compile_schedule(schedule)
    held = peak(compiled, 1.0).astype(int).tolist()
    allowed = list(held if limit is None else limit)
    problems = []
    if compiled.size > LARGEST:
        problems.append(Problem("pipeline", "actions", compiled.size, f"at most {LARGEST} for an optimal order"))
    if len(allowed) != compiled.schedule.pp or min(allowed, default=0) < 1:
        problems.append(Problem("pipeline", "limit", list(allowed), f"{compiled.schedule.pp} numbers of at least 1"))
    if not seconds > 0:
        problems.append(Problem("pipeline", "seconds", seconds, "a time of more than 0"))
    raise_all(problems)
    times = (costs.forward, costs.backward_input, costs.backward_weight, costs.p2p)
    now = float(evaluate(compiled, *times, overlap_p2p=True).makespan)
    keeps = all(alive <= most for alive, most in zip(held, allowed, strict=True))
    least = float(lower_bound(schedule.placement, schedule.microbatches, *times, schedule.split))
    if keeps and now <= least * (1 + 1e-9):
        return Optimum(schedule, now, least, True)
    # Without an order to start from, running everything one after the other is long enough.
    serial = schedule.microbatches * (sum(map(sum, times[:3])) + 2 * sum(costs.p2p))
    model = Model(schedule, costs, allowed, least, now if keeps else serial)
    solution = model.solve(seconds)
    bound = max(least, solution.bound)
    if solution.start is None:
        if not keeps:
            expected = f"a limit that an order found in {seconds:g} s keeps to"
            raise InputError([Problem("pipeline", "limit", allowed, expected)])
        return Optimum(schedule, now, now if solution.infeasible else bound, solution.infeasible)
    better = replace(schedule, name="optimal", orders=_orders(schedule, model.tasks, solution.start))
    makespan = float(evaluate(compile_schedule(better), *times, overlap_p2p=True).makespan)
    if keeps and now <= makespan:
        better, makespan = schedule, now
    return Optimum(better, makespan, min(bound, makespan), solution.proven or bound >= makespan * (1 - 1e-7))


def _orders(schedule: Schedule, tasks: Sequence[Task], start: NDArray[np.float64]) -> tuple[tuple[Action, ...], ...]:
    """Returns the actions of each rank by the time they start; those without duration stay in data-flow order."""
    chunk_of = {(rank, stage): chunk for rank, row in enumerate(schedule.placement) for chunk, stage in enumerate(row)}
    placed = sorted(range(len(tasks)), key=lambda i: (round(float(start[i]), 9), tasks[i].microbatch, tasks[i].depth))
    orders: list[list[Action]] = [[] for _ in range(schedule.pp)]
    for task in (tasks[i] for i in placed):
        orders[task.rank].append(Action(task.kind, chunk_of[task.rank, task.stage], task.microbatch))
    return tuple(map(tuple, orders))
