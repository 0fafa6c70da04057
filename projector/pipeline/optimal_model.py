"""The mixed-integer programme of :mod:`projector.pipeline.optimal`: start times, and one binary per open pair."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from projector.dataclass import dataclass
from projector.pipeline.types import Costs, Kind, Schedule
from projector.size import Floats


@dataclass(frozen=True, slots=True)
class Task:
    """One action of the programme. ``depth``: its place on the way of a micro-batch down the stages and back."""

    kind: Kind
    stage: int
    microbatch: int
    rank: int
    seconds: float
    depth: int


@dataclass(frozen=True)
class Solution:
    """The solver's ``start`` ``[tasks]`` seconds (``None``: nothing found in time) and lower ``bound`` on the makespan."""

    start: Floats | None
    bound: float
    proven: bool
    infeasible: bool


class Model:
    """The programme: a start per task, the makespan, a binary per open pair (1: its first goes first)."""

    def __init__(self, schedule: Schedule, costs: Costs, limit: Sequence[int], least: float, horizon: float) -> None:
        self.tasks = _tasks(schedule, costs)
        self.arcs = _arcs(self.tasks, costs)
        self.limit, self.least, self.horizon = limit, least, horizon * (1 + 1e-9)
        count = len(self.tasks)
        self.duration = np.array([task.seconds for task in self.tasks])
        self.before = _closure(count, self.arcs)
        self.earliest, self.latest = self._windows()
        self.rows: list[tuple[dict[int, float], float]] = []  # sum(coefficient · variable) <= value
        self.pairs = self._open_pairs()
        self.makespan = count
        self.size = count + 1 + len(self.pairs)

    def solve(self, seconds: float) -> Solution:
        """Runs HiGHS for at most ``seconds``; returns the best solution found."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        self._add_order()
        self._add_memory()
        entries = [(n, column, value) for n, (row, _) in enumerate(self.rows) for column, value in row.items()]
        number, column, value = (np.array(part) for part in zip(*entries, strict=True))
        matrix = csr_array((value, (number, column)), shape=(len(self.rows), self.size))
        most = np.array([bound for _, bound in self.rows])
        goal = np.zeros(self.size)
        goal[self.makespan] = 1.0
        whole = np.concatenate([np.zeros(self.makespan + 1), np.ones(len(self.pairs))])
        low = np.concatenate([self.earliest, [self.least], np.zeros(len(self.pairs))])
        high = np.concatenate([self.latest, [self.horizon], np.ones(len(self.pairs))])
        result = milp(
            goal,
            integrality=whole,
            bounds=Bounds(low, np.maximum(low, high)),
            constraints=LinearConstraint(matrix, -np.inf, most),
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )
        bound = getattr(result, "mip_dual_bound", None)
        start = None if result.x is None else np.asarray(result.x[: self.makespan])
        return Solution(start, self.least if bound is None else float(bound), result.status == 0, result.status == 2)

    def _windows(self) -> tuple[Floats, Floats]:
        """Returns the earliest and latest start of every task within the horizon, by the data flow alone."""
        ancestors = self.before.sum(axis=0)  # fewer than any task has that it goes before
        earliest, tail = np.zeros(len(self.tasks)), self.duration.copy()
        for first, then, wait in sorted(self.arcs, key=lambda arc: ancestors[arc[0]]):
            earliest[then] = max(earliest[then], earliest[first] + self.duration[first] + wait)
        for first, then, wait in sorted(self.arcs, key=lambda arc: -ancestors[arc[1]]):
            tail[first] = max(tail[first], self.duration[first] + wait + tail[then])
        return earliest, np.maximum(earliest, self.horizon - tail)

    def _open_pairs(self) -> dict[tuple[int, int], int]:
        """Returns the variable of each pair on one rank not put in order by data flow or windows; settles the others."""
        pairs: dict[tuple[int, int], int] = {}
        end = self.earliest + self.duration
        slack = 1e-9 * max(1.0, self.horizon)
        for a, b in combinations(range(len(self.tasks)), 2):
            if self.tasks[a].rank != self.tasks[b].rank or self.before[a, b] or self.before[b, a]:
                continue
            if end[a] > self.latest[b] + slack:
                self._settle(b, a)
            elif end[b] > self.latest[a] + slack:
                self._settle(a, b)
            else:
                pairs[a, b] = len(self.tasks) + 1 + len(pairs)
        return pairs

    def _settle(self, first: int, then: int) -> None:
        self.before[first, then] = True
        self.rows.append(({first: 1.0, then: -1.0}, -self.duration[first]))

    def _add_order(self) -> None:
        for first, then, wait in self.arcs:
            self.rows.append(({first: 1.0, then: -1.0}, -(self.duration[first] + wait)))
        for task, seconds in enumerate(self.duration):
            self.rows.append(({task: 1.0, self.makespan: -1.0}, -seconds))
        for (a, b), pair in self.pairs.items():
            wide = max(0.0, self.latest[a] + self.duration[a] - self.earliest[b])
            back = max(0.0, self.latest[b] + self.duration[b] - self.earliest[a])
            self.rows.append(({a: 1.0, b: -1.0, pair: wide}, wide - self.duration[a]))
            self.rows.append(({b: 1.0, a: -1.0, pair: -back}, -self.duration[b]))
        self._add_chains()

    def _add_chains(self) -> None:
        """Adds rows: if a goes before b, so does the micro-batch before a, and a goes before the next one of b."""
        place = {(t.kind, t.stage, t.microbatch): i for i, t in enumerate(self.tasks)}
        for a, b in self.pairs:
            for x, y in ((a, b), (b, a)):
                task = self.tasks[y]
                following = place.get((task.kind, task.stage, task.microbatch + 1))
                if following is not None and not self.before[x, following]:
                    row: dict[int, float] = {}
                    moved = self._goes_first(x, y, row, 1.0) - self._goes_first(x, following, row, -1.0, -1.0)
                    self.rows.append((row, -moved))

    def _goes_first(self, a: int, b: int, row: dict[int, float], factor: float, sign: float = 1.0) -> float:
        """Adds ``factor`` × [a before b] to ``row``; returns ``sign`` × the constant part of it."""
        if self.before[a, b] or self.before[b, a]:
            return factor * sign * float(self.before[a, b])
        flipped = (a, b) not in self.pairs
        pair = self.pairs[b, a] if flipped else self.pairs[a, b]
        row[pair] = row.get(pair, 0.0) + (-factor if flipped else factor)
        return factor * sign if flipped else 0.0

    def _add_memory(self) -> None:
        """Adds rows: when a forward starts, the forwards up to it, less what was released before it, keep to the limit."""
        release = "W" if any(task.kind == "W" for task in self.tasks) else "B"
        for a, task in enumerate(self.tasks):
            if task.kind != "F":
                continue
            row: dict[int, float] = {}
            alive = 1.0
            for b, other in enumerate(self.tasks):
                if b != a and other.rank == task.rank and other.kind in ("F", release):
                    alive += self._goes_first(b, a, row, 1.0 if other.kind == "F" else -1.0)
            self.rows.append((row, self.limit[task.rank] - alive))


def _tasks(schedule: Schedule, costs: Costs) -> list[Task]:
    whole = [b + w for b, w in zip(costs.backward_input, costs.backward_weight, strict=True)]
    seconds = {"F": costs.forward, "B": costs.backward_input if schedule.split else whole, "W": costs.backward_weight}
    last = schedule.pp * schedule.vpp - 1
    tasks = []
    for rank, order in enumerate(schedule.orders):
        for kind, chunk, microbatch in order:
            stage = schedule.placement[rank][chunk]
            depth = stage if kind == "F" else 2 * last + 1 - stage if kind == "B" else 2 * last + 2
            tasks.append(Task(kind, stage, microbatch, rank, seconds[kind][stage], depth))
    return tasks


def _arcs(tasks: Sequence[Task], costs: Costs) -> list[tuple[int, int, float]]:
    """Returns (first, then, seconds between): data flow, and micro-batches in turn for each kind and stage."""
    place = {(t.kind, t.stage, t.microbatch): i for i, t in enumerate(tasks)}
    home = {t.stage: t.rank for t in tasks}
    arcs = []
    for i, task in enumerate(tasks):
        kind, stage, mb = task.kind, task.stage, task.microbatch
        needs: list[tuple[Kind, int, int]] = [(kind, stage, mb - 1)]
        if kind == "F":
            needs.append(("F", stage - 1, mb))
        elif kind == "B":
            needs += [("F", stage, mb), ("B", stage + 1, mb)]
        else:
            needs.append(("B", stage, mb))
        for need in needs:
            if need in place:
                crosses = home[need[1]] != task.rank
                arcs.append((place[need], i, costs.p2p[min(stage, need[1])] if crosses else 0.0))
    return arcs


def _closure(count: int, arcs: Sequence[tuple[int, int, float]]) -> NDArray[np.bool_]:
    """Returns ``[count, count]``: whether one task goes before another by the arcs, directly or not."""
    reach = np.zeros((count, count), np.bool_)
    for first, then, _ in arcs:
        reach[first, then] = True
    for middle in range(count):
        reach |= np.outer(reach[:, middle], reach[middle])
    return reach
