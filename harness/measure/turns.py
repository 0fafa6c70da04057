"""Trainings and timings that take turns: a repetition, the layers, a repetition, the pace of the machine between them.

What is compared lies seconds apart, on both sides of what it is compared with: a machine whose speed drifts moves both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from harness.measure.spec import Job
from projector.benchmark.timings import Asked
from projector.dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Repetition ``number`` of a job's training, or, with ``asked``, its layers timed; ``name`` tells what was done."""

    job: Job
    name: str
    number: int = 1
    asked: Asked | None = None


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A turn that was taken. ``pace``: seconds of the reference work before and after it, their mean; ``waited``: share
    of it in which a rank had no core; ``others``: cores that other programs used; ``found``: what was timed."""

    turn: Turn
    pace: float
    waited: float
    others: float
    found: Mapping[str, Any] | None = None


def in_order(jobs: Sequence[Job], repeat: int, timed: Mapping[str, Sequence[Asked]] | None) -> Iterator[Turn]:
    """Without timings, all jobs before any runs again, so that a machine that slows down slows them all; with ``timed`` (by
    id of the job), a job's turns in a row, its timings in the middle of its repetitions."""
    numbers = range(1, repeat + 1)

    def trained(job: Job, number: int) -> Turn:
        tail = f" ({number} of {repeat})" if repeat > 1 else ""
        return Turn(job=job, name=f"trained {job.id}{tail}", number=number)

    if timed is None:
        yield from (trained(job, number) for number in numbers for job in jobs)
        return
    for job in jobs:
        for number in numbers:
            yield trained(job, number)
            if number == (repeat + 1) // 2:
                for asked in timed.get(job.id, ()):
                    alone = ", each rank alone" if asked.ranks < job.workload.gpus else ""
                    yield Turn(job=job, name=f"timed layers of {job.id}{alone}", asked=asked)


def take(
    turns: Sequence[Turn],
    run: Callable[[Turn], dict[str, Any]],
    pace: Callable[[], float],
    kept: Callable[[list[dict[str, Any]]], None],
) -> list[dict[str, Any]]:
    """What ``run`` says of every turn, and the ``pace`` around it (words of :class:`Taken`); ``kept`` hears all so far."""
    done: list[dict[str, Any]] = []
    before = pace()
    for turn in turns:
        found = run(turn)
        after = pace()
        done.append({**found, "pace": (before + after) / 2.0})
        kept(done)
        before = after
    return done
