"""Compiles a schedule to index arrays: one topological order, cut into levels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from projector.pipeline.types import KINDS, Compiled, Indices, Schedule

F, B, W = range(len(KINDS))
Flags = NDArray[np.bool_]


class Deadlock(ValueError):
    """Raised where ranks wait for each other, or an action stands before what it needs on its own rank."""


def compile_schedule(schedule: Schedule, paired: bool = False) -> Compiled:
    """Returns the index arrays of ``schedule``.

    ``paired``: a forward directly followed by a backward of another micro-batch or chunk on its rank runs beside it, as
    one action that waits for the inputs of both (Megatron-LM core/pipeline_parallel/combined_1f1b.py; DualPipe). Where
    pairs would make ranks wait for each other (too few forwards ahead), there are none.

    Raises :class:`Deadlock` when no execution of the orders exists, or when an action is missing or doubled.
    """
    flat = _Flat(schedule, paired)
    finished, level = _levels(flat)
    if paired and finished < flat.size:
        return compile_schedule(schedule)
    if finished < flat.size:
        raise Deadlock(f"{schedule.name} pp={schedule.pp} vpp={schedule.vpp} m={schedule.microbatches}: {finished} of "
                       f"{flat.size} actions can run")  # fmt: skip
    return _arrays(flat, np.asarray(level, np.intp))


def deadlocks(schedule: Schedule) -> bool:
    """Returns whether the ranks of ``schedule`` end up waiting for each other."""
    flat = _Flat(schedule)
    return _levels(flat)[0] < flat.size


class _Flat:
    """The orders of all ranks laid end to end, each action with the place of its ``source`` (−1: none)."""

    def __init__(self, schedule: Schedule, paired: bool = False) -> None:
        self.schedule = schedule
        m, last = schedule.microbatches, schedule.pp * schedule.vpp - 1
        expected = (3 if schedule.split else 2) * m * (last + 1)
        self.rank, self.kind, self.chunk, self.microbatch, self.starts = schedule.flat
        self.stage = np.asarray(schedule.placement, np.intp)[self.rank, self.chunk]
        self.size = len(self.rank)
        place = np.full((3, last + 1, m), -1, np.intp)
        place[self.kind, self.stage, self.microbatch] = np.arange(self.size)
        filled = place if schedule.split else place[:2]
        if self.size != expected or (filled < 0).any():
            raise Deadlock(f"{schedule.name}: {self.size} actions, {expected} different ones expected")
        if (self.rank[place[B]] != self.rank[place[F]]).any():
            raise Deadlock(f"{self.schedule.name}: a backward stands on another rank than its forward")
        if (place[B] < place[F]).any() or (self.schedule.split and (place[W] < place[B]).any()):
            raise Deadlock(f"{self.schedule.name}: a backward stands before its forward, or W before its B")
        joined = self._joined()
        self.partner = self._partners(joined) if paired else np.full(self.size, -1, np.intp)
        self.source = self._sources(place, last, self._leaves(joined))

    def _joined(self) -> Flags | None:
        """Returns ``[actions]``: whether an action may run together with the one right after it (``Schedule.joined``);
        None: any may."""
        if self.schedule.joined is None:
            return None
        out = np.zeros(self.size, np.bool_)
        for start, (low, high) in zip(self.starts, self.schedule.joined, strict=False):
            out[start + low : start + high - 1] = True
        return out

    def _leaves(self, joined: Flags | None) -> Indices:
        """Returns ``[actions]``: the action at whose end the output of each one is sent: that of its W in a whole
        backward, and that of its backward for a forward of a pair."""
        out = np.arange(self.size)
        if joined is not None:
            whole = np.flatnonzero(joined[:-1] & (self.kind[:-1] == B) & (self.kind[1:] == W))
            alike = (each[whole] == each[whole + 1] for each in (self.chunk, self.microbatch))
            whole = whole[np.logical_and(*alike)]
            out[whole] = whole + 1
            forward = np.flatnonzero(self.partner >= 0)
            out[forward] = out[self.partner[forward]]
        return out

    def _partners(self, joined: Flags | None) -> Indices:
        """Returns ``[actions]``: for a forward the backward right after it, unless that is its own; else −1."""
        partner = np.full(self.size, -1, np.intp)
        one, two = np.arange(self.size - 1), np.arange(1, self.size)
        fits = (self.kind[one] == F) & (self.kind[two] == B) & (self.rank[one] == self.rank[two])
        fits &= (self.stage[one] != self.stage[two]) | (self.microbatch[one] != self.microbatch[two])
        for start, end in pairwise(self.starts):
            kinds = self.kind[start:end]
            if not (kinds[int(np.argmax(kinds == B)) :] == F).any():
                fits[start : end - 1] = False  # all forwards first: nothing is left to run beside a backward
        if joined is not None:
            fits &= joined[:-1]
        partner[one[fits]] = two[fits]
        return partner

    def _sources(self, place: Indices, last: int, leaves: Indices) -> Indices:
        source = np.full(self.size, -1, np.intp)
        forward = (self.kind == F) & (self.stage > 0)
        source[forward] = leaves[place[F, self.stage[forward] - 1, self.microbatch[forward]]]
        backward = (self.kind == B) & (self.stage < last)
        source[backward] = leaves[place[B, self.stage[backward] + 1, self.microbatch[backward]]]
        return source


def _levels(flat: _Flat) -> tuple[int, list[int]]:
    """Returns how many actions can run, and the level of each: 1 + the highest level among its predecessors (from 0)."""
    source = flat.source.tolist()
    # that of the backward that a forward runs beside (−1: none)
    second_source = np.where(flat.partner >= 0, flat.source[flat.partner], -1).tolist()
    level = [-1] * flat.size
    at, ends = list(flat.starts[:-1]), flat.starts[1:]
    waiting: dict[int, int] = {}
    runnable = list(range(len(at)))
    finished = 0
    while runnable:
        rank = runnable.pop()
        here, end = at[rank], ends[rank]
        previous = level[here - 1] if here > flat.starts[rank] else -1
        while here < end:
            need = source[here]
            if need >= 0:
                other = level[need]
                if other < 0:
                    waiting[need] = rank
                    break
                if other > previous:
                    previous = other
            need = second_source[here]
            if need >= 0:
                other = level[need]
                if other < 0:
                    waiting[need] = rank
                    break
                if other > previous:
                    previous = other
            previous += 1
            level[here] = previous
            if here in waiting:
                runnable.append(waiting.pop(here))
            here += 1
            finished += 1
        at[rank] = here
    return finished, level


def _arrays(flat: _Flat, level: Indices) -> Compiled:
    order = np.argsort(level, kind="stable")
    new = np.empty(flat.size, np.intp)
    new[order] = np.arange(flat.size)
    starts = np.asarray(flat.starts[:-1], np.intp)
    before = np.arange(flat.size) - 1
    before[starts] = -1
    sends = np.full(flat.size, -1, np.intp)
    crosses = (flat.source >= 0) & (flat.rank[flat.source] != flat.rank)
    boundary = np.where(crosses, np.where(flat.kind == F, flat.stage - 1, flat.stage), -1)
    sends[flat.source[crosses]] = boundary[crosses]
    columns = {name: getattr(flat, name) for name in ("rank", "chunk", "stage", "kind", "microbatch")}
    columns |= {"boundary": boundary, "sends": sends, "steady": _steady(flat)}
    places = {"before": before, "source": flat.source, "partner": flat.partner}
    columns |= {name: np.where(index >= 0, new[index], -1) for name, index in places.items()}
    return Compiled(
        schedule=flat.schedule,
        **{name: column[order] for name, column in columns.items()},
        levels=np.searchsorted(level[order], np.arange(int(level.max()) + 2)),
        by_rank=new,
        rank_starts=starts,
    )


def _steady(flat: _Flat) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    out = np.zeros(flat.size, np.bool_)
    for start, end in zip(flat.starts[:-1], flat.starts[1:], strict=True):
        kinds = flat.kind[start:end]
        first_backward = int(np.argmax(kinds == B))
        last_forward = len(kinds) - 1 - int(np.argmax(kinds[::-1] == F))
        out[start + first_backward : start + last_forward + 1] = True
    return out
